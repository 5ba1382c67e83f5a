// What members tell each other when they meet. Source: hivemind wire spec, section 6.4.
#include "cohive/averaging/group.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"

namespace cohive::averaging {

std::string encode_gathered(const Member& member) {
  using namespace msgpack;
  const Value bandwidth = member.bandwidth ? Value(*member.bandwidth) : Value();
  return encode(Array{{bandwidth, static_cast<int>(member.mode), Bin{encode(member.data)}}});
}

Result<Member> decode_gathered(const PeerId& peer, std::string_view blob) {
  const Error bad(cohive::Errc::malformed, peer, "gathered data");
  auto value = msgpack::decode(as_bytes(blob));
  const auto* fields = value ? value->get_if<msgpack::Array>() : nullptr;
  if (!fields || fields->items.size() != 3) return bad;
  const auto mode = fields->items[1].as_uint();
  const auto* data = fields->items[2].get_if<msgpack::Bin>();
  if (!mode || *mode > 2 || !data) return bad;
  auto content = msgpack::decode(as_bytes(data->data));
  if (!content) return bad;
  Member result{peer, static_cast<PeerMode>(*mode), std::nullopt, std::move(*content)};
  if (!fields->items[0].is_nil()) {
    result.bandwidth = fields->items[0].as_number();
    if (!result.bandwidth || !(*result.bandwidth >= 0) || *result.bandwidth > 1e18) return bad;
  }
  return result;
}

std::optional<std::size_t> Group::index_of(const PeerId& peer) const {
  const auto at = std::ranges::find(members, peer, &Member::peer);
  return at == members.end() ? std::nullopt : std::optional(static_cast<std::size_t>(at - members.begin()));
}

}  // namespace cohive::averaging
