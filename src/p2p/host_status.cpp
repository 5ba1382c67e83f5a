#include "host_status.hpp"

#include <nlohmann/json.hpp>

namespace cohive::p2p {
namespace {

using nlohmann::json;

/// Agents are text of peers, which need not be UTF-8.
std::string dumped(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

json described(const PeerId& id, const ConnectedPeer& peer, const ConnectionEntry& entry, TimePoint now) {
  transport::ConnectionStats sum;
  std::size_t sockets = 0;
  for (const auto& one : peer.connections) {
    if (one->kind == ConnectionKind::bundle) continue;
    ++sockets;
    const auto stats = one->connection->stats();
    sum.bytes_in += stats.bytes_in;
    sum.bytes_out += stats.bytes_out;
  }
  const Duration round_trip = entry.connection->round_trip();
  return {{"id", id.text()},
          {"agent", peer.agent},
          {"address", entry.connection->remote_address().text()},
          {"path", is_relayed(entry) ? "relayed" : "direct"},
          {"direction", entry.connection->outbound() ? "us" : "the peer"},
          {"security", entry.connection->security()},
          {"connections", sockets},
          {"streams", entry.connection->open_streams()},
          {"rtt_seconds", round_trip > Duration::zero() ? json(to_seconds(round_trip)) : json()},
          {"bytes_in", sum.bytes_in},
          {"bytes_out", sum.bytes_out},
          {"seconds", to_seconds(now - peer.connections.front()->opened)}};
}

}  // namespace

HostStatus::HostStatus(const Self& self, const ConnectionTable& table, const OwnAddresses& own,
                       const ReachabilityState& reachability, const RelayClient& relays)
    : self_(self),
      table_(table),
      own_(own),
      reachability_(reachability),
      relays_(relays),
      relayed_(self.runtime.metrics().gauge("cohive_p2p_relayed_peers",
                                            "Connected peers that are reached through a relay alone.")),
      node_(Status::of(self.runtime).add("node", [this] { return node(); })),
      peers_(Status::of(self.runtime).add("peers", [this] { return peers(); })) {}

std::string HostStatus::node() const {
  auto addresses = json::array(), relays = json::array();
  std::string join;
  for (const auto& address : own_.announced()) {
    const std::string text = address.with_peer(self_.id).text();
    join += (join.empty() ? "INITIAL_PEERS=" : ",") + text;
    addresses.push_back(text);
  }
  for (const auto& held : relays_.held()) relays.push_back(held.relay.text());
  const Traffic traffic = table_.traffic();
  return dumped({{"peer_id", self_.id.text()},
                 {"agent", self_.options.agent},
                 {"addresses", std::move(addresses)},
                 {"join", std::move(join)},
                 {"reachability", to_text(reachability_.current())},
                 {"relays", std::move(relays)},
                 {"connections", table_.size()},
                 {"bytes_in", traffic.bytes_in},
                 {"bytes_out", traffic.bytes_delivered}});
}

std::string HostStatus::peers() const {
  auto list = json::array();
  for (const auto& [id, peer] : table_.peers()) {
    if (peer.connections.empty()) continue;
    ConnectionEntryPtr entry = table_.best(id);
    if (!entry) entry = peer.connections.back();
    list.push_back(described(id, peer, *entry, self_.runtime.now()));
  }
  return dumped(list);
}

void HostStatus::measure() {
  std::size_t relayed = 0;
  for (const auto& [id, peer] : table_.peers()) relayed += table_.best(id) && !table_.direct(id);
  relayed_.set(static_cast<double>(relayed));
}

}  // namespace cohive::p2p
