// What members tell each other when they meet. Source: docs/wire/hivemind.md, section 6.4.
#include "cohive/averaging/group.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"

namespace cohive::averaging {

std::size_t count_values(const msgpack::Value& value) {
  std::size_t count = 1;
  const auto add = [&count](const std::vector<msgpack::Value>& items) {
    for (const auto& item : items) count += count_values(item);
  };
  if (const auto* array = value.get_if<msgpack::Array>()) add(array->items);
  if (const auto* tuple = value.get_if<msgpack::Tuple>()) add(tuple->items);
  if (const auto* map = value.get_if<msgpack::Map>())
    for (const auto& [key, item] : map->entries) count += 1 + count_values(item);
  return count;
}

std::string encode_gathered(const Member& member) {
  using namespace msgpack;
  const Value bandwidth = member.bandwidth ? Value(*member.bandwidth) : Value();
  return encode(Array{{bandwidth, static_cast<int>(member.mode), Bin{encode(member.data)}}});
}

Result<Member> decode_gathered(const PeerId& peer, std::string_view blob, std::size_t* values) {
  const Error bad(cohive::Errc::malformed, peer, "gathered data");
  if (blob.size() > kMaxGatheredBytes) return bad;
  auto value = msgpack::decode(as_bytes(blob), 4);
  const auto* fields = value ? value->get_if<msgpack::Array>() : nullptr;
  if (!fields || fields->items.size() != 3) return bad;
  const auto mode = fields->items[1].as_uint();
  const auto* data = fields->items[2].get_if<msgpack::Bin>();
  if (!mode || *mode > 2 || !data) return bad;
  const std::size_t most = values ? std::min(kMaxGatheredValues, *values) : kMaxGatheredValues;
  auto content = msgpack::decode(as_bytes(data->data), most);
  if (!content) return bad;
  if (values) *values -= count_values(*content);
  Member result{peer, static_cast<PeerMode>(*mode), std::nullopt, std::move(*content)};
  if (!fields->items[0].is_nil()) {
    result.bandwidth = fields->items[0].as_number();
    if (!result.bandwidth || !(*result.bandwidth >= 0)) return bad;
    result.bandwidth = std::min(*result.bandwidth, kMaxBandwidth);
  }
  return result;
}

std::optional<std::size_t> Group::index_of(const PeerId& peer) const {
  const auto at = std::ranges::find(members, peer, &Member::peer);
  return at == members.end() ? std::nullopt : std::optional(static_cast<std::size_t>(at - members.begin()));
}

}  // namespace cohive::averaging
