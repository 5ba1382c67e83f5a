/// \file
/// Which codec a tensor gets: one for all, or chosen by its size, its role or its key, as hivemind's strategies choose.
/// Source: docs/wire/hivemind.md, section 5.8.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "cohive/codec/codec_set.hpp"

namespace cohive::codec {

/// What a tensor is to the model. State averaging names parameter and optimizer; gradient averagers name none, so that
/// hivemind's role strategies treat gradients as unspecified.
enum class Role { activation, parameter, gradient, optimizer, unspecified };

/// An index in the list of tensors, a name, or (parameter name, statistic) of an optimizer.
using TensorKey = std::variant<std::uint64_t, std::string, std::pair<std::string, std::string>>;

/// What strategies look at. Of a part, this still describes the whole tensor.
struct CompressionInfo {
  TensorKey key;                  ///< what per-tensor strategies look up
  Shape shape;                    ///< what size-adaptive ones look at
  DType dtype = DType::float32;   ///< of the tensor itself, whatever type it travels in
  Role role = Role::unspecified;  ///< what role-adaptive ones look at
};

/// A strategy: immutable, cheap to copy, safe on any thread. All peers of a group must use the same one, or parts do
/// not fit together.
class Compression {
 public:
  /// One codec for everything. Implicit: a codec is the simplest strategy.
  Compression(Codec codec = Codec::none) : rule_(CodecSpec(codec)) {}
  /// One codec with its parameters for everything.
  Compression(CodecSpec codec) : rule_(codec) {}

  /// `greater_equal` for tensors of at least `threshold` values, `less` for the others.
  static Compression size_adaptive(std::uint64_t threshold, Compression less, Compression greater_equal);

  struct Roles;
  /// By role; what `roles` leaves out, and what is unspecified, gets `otherwise`.
  static Compression role_adaptive(Roles roles, Compression otherwise);

  /// By key. With a list, keys are indices.
  static Compression per_tensor(std::vector<Compression> by_index);
  /// By key of any kind; choose() fails for tensors whose key is not in the map.
  static Compression per_tensor(std::map<TensorKey, Compression> by_key);

  /// Returns the codec of a tensor. Errors: Errc::not_found for a key that a per-tensor strategy does not have.
  Result<CodecSpec> choose(const CompressionInfo& info) const;
  /// Tells whether a rule by role or by key names that codec: what holds for everything, or for all tensors of a size,
  /// was not chosen with this one in mind.
  bool names(const CompressionInfo& info) const;
  /// Returns compression_ratio of that codec: what the parts of this tensor are cut by. Errors: as choose.
  Result<double> ratio(const CompressionInfo& info) const;

  /// Returns the codec, when it is one for everything.
  std::optional<CodecSpec> fixed() const;
  /// Returns all codecs that the strategy may choose.
  std::vector<CodecSpec> choices() const;

 private:
  struct SizeRule;
  struct RoleRule;
  struct KeyRule;
  using Rule = std::variant<CodecSpec, std::shared_ptr<const SizeRule>, std::shared_ptr<const RoleRule>,
                            std::shared_ptr<const KeyRule>>;
  explicit Compression(Rule rule) : rule_(std::move(rule)) {}
  const Compression* next(const CompressionInfo& info) const;

  Rule rule_;
};

/// Tells whether a strategy may choose a codec.
bool uses(const Compression& compression, Codec codec);

/// A strategy for each role that shall not have the default.
struct Compression::Roles {
  std::optional<Compression> activation{},  ///< of Role::activation; unset: the default, as with the next three
      parameter{},                          ///< of Role::parameter
      gradient{},                           ///< of Role::gradient
      optimizer{};                          ///< of Role::optimizer
};

}  // namespace cohive::codec
