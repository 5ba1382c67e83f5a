#include "cohive/codec/compression.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"

namespace cohive::codec {
namespace {

std::string text_of(const TensorKey& key) {
  if (const auto* index = std::get_if<std::uint64_t>(&key)) return std::to_string(*index);
  if (const auto* name = std::get_if<std::string>(&key)) return log::quoted(*name);
  const auto& [name, statistic] = std::get<2>(key);
  return log::quoted(name) + "/" + log::quoted(statistic);
}

}  // namespace

struct Compression::SizeRule {
  std::uint64_t threshold;
  Compression less, greater_equal;
};
struct Compression::RoleRule {
  std::array<std::optional<Compression>, 5> by_role;
  Compression otherwise;
};
struct Compression::KeyRule {
  std::map<TensorKey, Compression> by_key;
};

Compression Compression::size_adaptive(std::uint64_t threshold, Compression less, Compression greater_equal) {
  return Compression(
      Rule(std::make_shared<const SizeRule>(SizeRule{threshold, std::move(less), std::move(greater_equal)})));
}

Compression Compression::role_adaptive(Roles roles, Compression otherwise) {
  return Compression(Rule(
      std::make_shared<const RoleRule>(RoleRule{{std::move(roles.activation), std::move(roles.parameter),
                                                 std::move(roles.gradient), std::move(roles.optimizer), std::nullopt},
                                                std::move(otherwise)})));
}

Compression Compression::per_tensor(std::vector<Compression> by_index) {
  std::map<TensorKey, Compression> by_key;
  for (std::size_t i = 0; i < by_index.size(); ++i) by_key.emplace(std::uint64_t{i}, std::move(by_index[i]));
  return per_tensor(std::move(by_key));
}

Compression Compression::per_tensor(std::map<TensorKey, Compression> by_key) {
  return Compression(Rule(std::make_shared<const KeyRule>(KeyRule{std::move(by_key)})));
}

/// The strategy this one hands `info` to; null when there is none for its key.
const Compression* Compression::next(const CompressionInfo& info) const {
  if (const auto* size = std::get_if<std::shared_ptr<const SizeRule>>(&rule_)) {
    // A shape too large to count is certainly large.
    const auto count = element_count(info.shape).value_or(std::numeric_limits<std::uint64_t>::max());
    return count >= (*size)->threshold ? &(*size)->greater_equal : &(*size)->less;
  }
  if (const auto* role = std::get_if<std::shared_ptr<const RoleRule>>(&rule_)) {
    const auto& named = (*role)->by_role.at(static_cast<std::size_t>(info.role));
    return named ? &*named : &(*role)->otherwise;
  }
  const auto& by_key = std::get<std::shared_ptr<const KeyRule>>(rule_)->by_key;
  const auto found = by_key.find(info.key);
  return found == by_key.end() ? nullptr : &found->second;
}

Result<CodecSpec> Compression::choose(const CompressionInfo& info) const {
  const Compression* chosen = this;
  while (chosen && !chosen->fixed()) chosen = chosen->next(info);
  if (!chosen) return Error(Errc::not_found, "no compression for the tensor " + text_of(info.key));
  return *chosen->fixed();
}

bool Compression::names(const CompressionInfo& info) const {
  for (const Compression* chosen = this; chosen && !chosen->fixed(); chosen = chosen->next(info)) {
    if (std::holds_alternative<std::shared_ptr<const KeyRule>>(chosen->rule_)) return true;
    const auto* role = std::get_if<std::shared_ptr<const RoleRule>>(&chosen->rule_);
    if (role && (*role)->by_role.at(static_cast<std::size_t>(info.role))) return true;
  }
  return false;
}

Result<double> Compression::ratio(const CompressionInfo& info) const {
  const auto codec = choose(info);
  if (!codec) return codec.error();
  return compression_ratio(codec->codec, info.dtype);
}

std::optional<CodecSpec> Compression::fixed() const {
  const auto* codec = std::get_if<CodecSpec>(&rule_);
  return codec ? std::optional(*codec) : std::nullopt;
}

std::vector<CodecSpec> Compression::choices() const {
  if (const auto one = fixed()) return {*one};
  std::vector<CodecSpec> all;
  const auto add = [&all](const Compression& part) {
    const auto more = part.choices();
    all.insert(all.end(), more.begin(), more.end());
  };
  if (const auto* size = std::get_if<std::shared_ptr<const SizeRule>>(&rule_)) {
    add((*size)->less);
    add((*size)->greater_equal);
  } else if (const auto* role = std::get_if<std::shared_ptr<const RoleRule>>(&rule_)) {
    for (const auto& part : (*role)->by_role)
      if (part) add(*part);
    add((*role)->otherwise);
  } else {
    for (const auto& [key, part] : std::get<std::shared_ptr<const KeyRule>>(rule_)->by_key) add(part);
  }
  return all;
}

bool uses(const Compression& compression, Codec codec) {
  const auto choices = compression.choices();
  return std::ranges::find(choices, codec, &CodecSpec::codec) != choices.end();
}

}  // namespace cohive::codec
