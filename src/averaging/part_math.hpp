// The arithmetic of one part. Pure functions that run on any thread; a part is small enough to stay in a core's cache
// from one of them to the next. Source: hivemind wire spec, section 6.7.
#pragma once

#include <memory>
#include <span>

#include "cohive/averaging/tensor_parts.hpp"
#include "cohive/core/result.hpp"
#include "robust.hpp"
#include "wire.hpp"

namespace cohive::averaging {

/// Takes the tensor out of a received message. Errors: no tensor, unknown dtype, not `length` elements, a codec that
/// does not exist or that the group has not agreed on.
Result<EncodedPart> encoded_part(const PartMessage& message, Slice record, std::size_t length,
                                 const codec::CodecSet& agreed = {});

/// True when no value is NaN or infinite.
bool all_finite(std::span<const float> values);

/// sum += weight * part, in one pass with the division. False when the average is not finite. On an error nothing is
/// added: wrong size, or a value that is not finite, which would reach every member of the group.
Result<bool> add_values(std::span<const float> part, double weight, std::span<float> sum, Adding how);
Result<bool> add_part(const EncodedPart& part, double weight, std::span<float> sum, Adding how);

/// For aggregates that look at all contributions at once. Errors as add_part.
Result<ReadValues> open_part(std::shared_ptr<const EncodedPart> part, std::size_t length);

/// The same as add_values for our own part as the last one, while it is in the cache: moves it by alpha towards the
/// average, unless that is not finite.
Result<bool> add_own_last(std::span<float> own, double weight, double divisor, float alpha, std::span<float> sum,
                          bool first);

/// sum /= weight, in float32 as Python does it. False when the result is not finite.
bool divide_by_weight(std::span<float> sum, double weight);

/// average - part in the part's codec, written over the part where nobody else holds its memory; its record is given
/// up. An empty average stands for "no change".
Result<Slice> difference_to(std::span<const float> average, EncodedPart& part, std::size_t length);

/// values += alpha * (average - values)
void move_towards(std::span<const float> average, float alpha, std::span<float> values);
/// The same; with an alpha of 1 without the rounding of a sum, so that all who do it hold the same.
void move_to(std::span<const float> average, float alpha, std::span<float> values);
void move_to(const ReadValues& average, float alpha, std::span<float> values);
/// values += alpha * delta, until a difference is not finite, which is an error.
Result<> add_difference(const EncodedPart& delta, float alpha, std::span<float> values);

/// The bytes of float32 values as codec `none` sends them.
inline ByteView raw_bytes(std::span<const float> values) {
  return {reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()};
}

}  // namespace cohive::averaging
