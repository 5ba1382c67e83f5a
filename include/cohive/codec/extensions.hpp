/// \file
/// Codecs beyond hivemind's, for groups of cohive peers only, with error feedback: what one round loses is sent with
/// the next. Off by default. Python peers cannot read them, so they are used where every member of a group offered
/// them.
///
///   block4   one bfloat16 scale for every 64 values, then 4 bits a value: 4.25 bits instead of 32
///   top_k    the k values of largest magnitude as halves, and where they are: 32 bits for each of those
///
/// For gradients and other updates, where 0 means "nothing new"; not for parameters. Pure functions: safe on any
/// thread.
#pragma once

#include <vector>

#include "cohive/codec/codec.hpp"

namespace cohive::codec {

/// Values are numbers of the wire's CompressionType that hivemind does not use.
enum class Extension : std::uint8_t { block4 = 64, top_k = 65 };

std::optional<Extension> extension_from_wire(int compression);
/// "block4" and "top_k".
std::string_view name_of(Extension extension);

/// The extensions that a peer is willing to use.
class Extensions {
 public:
  Extensions() = default;
  Extensions(std::initializer_list<Extension> offered);

  bool offers(Extension extension) const noexcept;
  /// Names joined by commas, as peers tell each other; empty when none.
  std::string text() const;
  /// Names this version does not know are left out, so that versions can mix.
  static Extensions from_text(std::string_view text);
  friend bool operator==(Extensions, Extensions) = default;

 private:
  std::uint8_t bits_ = 0;
};

/// `wanted` where every member (ourselves among them) offers it. Nothing for a group of none.
std::optional<Extension> agree_on(Extension wanted, std::span<const Extensions> members);

struct ExtensionOptions {
  Extension kind = Extension::block4;
  double density = 0.01;  ///< top_k: the share of values sent, at least one value
};

/// Encodes as a one-dimensional tensor. At most 2^32 values. Values that are not finite reach the decoder, which
/// refuses them.
Slice encode_extension(const ExtensionOptions& options, std::span<const float> values);
/// Errors: Errc::malformed for sizes that do not fit, places out of order or out of range, scales and values that are
/// not finite. On an error `out` and `accumulator` are as they were.
Result<> decode_extension(Extension kind, ByteView buffer, std::span<float> out);
/// accumulator += weight * decode(buffer); takes time by the values sent only, for top_k.
Result<> accumulate_extension(Extension kind, ByteView buffer, float weight, std::span<float> accumulator);

/// What is owed of one tensor's updates, round after round. Any stretch of the tensor can be encoded by itself; calls
/// for stretches that do not overlap may run at once on several threads.
class ErrorFeedback {
 public:
  ErrorFeedback(ExtensionOptions options, std::size_t size);

  /// `values` of the stretch that begins at `first`, plus what earlier rounds lost of them.
  void correct(std::size_t first, std::span<const float> values, std::span<float> out) const;
  /// Encodes these. As long as nothing is committed the next call starts from the same debt.
  Slice encode(std::size_t first, std::span<const float> values) const;
  /// What encode() made of these values was delivered: what it lost is owed now. Errors: a buffer that cannot be
  /// decoded, as of values that are not finite; it changes nothing, for nobody will have taken it.
  Result<> commit(std::size_t first, std::span<const float> values, ByteView delivered);
  /// The stretch was delivered as it is.
  void settle(std::size_t first, std::size_t count);
  /// What is owed: as long as the tensor.
  std::span<const float> owed() const noexcept { return owed_; }

 private:
  ExtensionOptions options_;
  std::vector<float> owed_;
};

}  // namespace cohive::codec
