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

/// Encodes the updates of one tensor round after round. Not thread-safe.
class ErrorFeedback {
 public:
  ErrorFeedback(ExtensionOptions options, std::size_t size);

  /// Encodes `values` (as many as `size`) plus what earlier rounds lost.
  Slice encode(std::span<const float> values);
  /// The buffer of the last encode() was delivered: what it lost is now owed. Without this call, as after a round that
  /// failed, the next encode() starts from the same debt again.
  void commit();
  /// Forgets the debt: after the tensor was replaced, for instance by a downloaded state.
  void reset();
  /// What is owed: as long as the tensor.
  std::span<const float> owed() const noexcept { return owed_; }

 private:
  ExtensionOptions options_;
  std::vector<float> owed_, next_;
  bool encoded_ = false;
};

}  // namespace cohive::codec
