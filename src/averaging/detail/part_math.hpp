// The arithmetic of one part. Pure functions that run on any thread; a part is small enough to stay in a core's cache
// from one of them to the next. Source: docs/wire/hivemind.md, section 6.7.
#pragma once

#include <memory>
#include <span>

#include "averaging/wire.hpp"
#include "cohive/averaging/tensor_parts.hpp"
#include "cohive/codec/decoder.hpp"
#include "cohive/core/result.hpp"

namespace cohive::averaging {

/// Arithmetic on more values than this goes to another thread. With one or two cores that thread would only take turns
/// with the loop, so what takes well under a millisecond stays.
std::size_t inline_values();

/// Takes the tensor out of a received message. Errors: no tensor, unknown dtype, not `length` elements, a record that
/// is larger than those need, a codec that does not exist or that the group has not agreed on.
Result<EncodedPart> encoded_part(const PartMessage& message, Slice record, std::size_t length,
                                 const codec::CodecSet& agreed = {});

/// Whether a member may say that its values weigh so much. They are samples, usually; a single member must not make a
/// sum of floats overflow.
inline bool is_weight(double weight) {
  return weight >= 0 && weight <= 1e15;
}

/// True when no value is NaN or infinite.
bool all_finite(std::span<const float> values);

/// sum += weight * part, in one pass with the division. False when the average is not finite. On an error nothing is
/// added: wrong size, or a value that is not finite, which would reach every member of the group.
Result<bool> add_values(std::span<const float> part, double weight, std::span<float> sum, Adding how);
Result<bool> add_part(const EncodedPart& part, double weight, std::span<float> sum, Adding how);

/// For aggregates that look at all contributions at once. Errors as add_part.
Result<ReadValues> open_part(std::shared_ptr<const EncodedPart> part, std::size_t length);

/// sum /= weight, in float32 as Python does it. False when the result is not finite.
bool divide_by_weight(std::span<float> sum, double weight);

/// average - part in the part's codec, written over the part where its memory is not shared; its record is given up. An
/// empty average stands for "no change", which is also the answer where the difference is too large for the codec: its
/// receivers would take us for hostile.
Result<Slice> difference_to(std::span<const float> average, EncodedPart& part, std::size_t length);

/// values *= factor
void scale(std::span<float> values, float factor);

/// Where the results of a stretch go. `out` may be the memory of `own`.
struct Destination {
  std::span<const float> own;
  std::span<float> out;
  bool differences = false;  ///< what is written is the change alone
};
/// out = own + alpha * (average - own), or the second term alone.
void move_towards(std::span<const float> average, float alpha, Destination to);
/// The same; with an alpha of 1 without the rounding of a sum, so that all members that do it hold the same.
void move_to(const codec::Decoder& average, float alpha, Destination to);
/// out = own + alpha * delta, or the second term alone.
void add_difference(const codec::Decoder& delta, float alpha, Destination to);

/// Opens a part to be applied. Errors: malformed, not_finite.
Result<codec::DecoderPtr> open_finite(const EncodedPart& part, std::size_t length);

/// The bytes of float32 values as codec `none` sends them.
inline ByteView raw_bytes(std::span<const float> values) {
  return {reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()};
}

}  // namespace cohive::averaging
