#include "observed_addresses.hpp"

#include <algorithm>
#include <map>

#include "p2p/detail/network_block.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kReportLife = 40min;  // as p2pd
constexpr std::size_t kMaxNetworks = 64;
constexpr std::size_t kMaxReportsOfNetwork = 4;  // by IPv4 and IPv6, of two transports
constexpr std::size_t kMaxConfirmed = 4, kMaxReached = 4, kMaxBound = 8;

/// An address without its port: the host alone.
Multiaddr host_of(const Multiaddr& address) {
  return Multiaddr::from_text(address.first_code() == Multiaddr::ip6 ? "/ip6/::" : "/ip4/0.0.0.0")
      .value()
      .with_host_of(address);
}

void add_unique(std::vector<Multiaddr>& list, Multiaddr address, std::size_t most) {
  if (list.size() < most && std::find(list.begin(), list.end(), address) == list.end())
    list.push_back(std::move(address));
}

}  // namespace

ObservedAddresses::ObservedAddresses(Self& self, Identify& identify, const Inbound& inbound, OwnAddresses& own)
    : self_(self),
      inbound_(inbound),
      own_(own),
      observed_(identify.observed().subscribe(
          [this](const ConnectionEntryPtr& entry, const Multiaddr& observed) { this->observe(entry, observed); })) {
  own.add_source([this] { return to_announce(); });
}

/// On a connection that we accepted, a peer sees us where it dialled us; on one that we dialled from a port that we
/// listen on, where an address translator maps this port to.
bool ObservedAddresses::of_listen_port(const transport::Connection& connection) const {
  if (!connection.outbound()) return true;
  const Multiaddr& local = connection.local_address();
  const auto bound = inbound_.bound();
  return std::any_of(bound.begin(), bound.end(), [&](const Multiaddr& one) {
    return one.first_code() == local.first_code() && one.with_host_of(local) == local;
  });
}

void ObservedAddresses::observe(const ConnectionEntryPtr& entry, const Multiaddr& observed) {
  const Multiaddr& observer = entry->connection->remote_address();
  // Only peers outside know how it looks from there.
  if (!inbound_.listening() || !self_.endpoint(observed) || !is_public_host(observer) ||
      observed.scope() != Multiaddr::Scope::public_)
    return;
  prune();
  const auto network = network_block(observer);
  if (!network || (!reports_.contains(*network) && reports_.size() >= kMaxNetworks)) return;
  auto& reports = reports_[*network];
  const Multiaddr address = observed.without_peer();
  std::erase_if(reports, [&](const Report& one) { return one.address.same_protocols(address); });
  if (reports.size() < kMaxReportsOfNetwork)
    reports.push_back({address, of_listen_port(*entry->connection), self_.runtime.now(), entry});

  const auto host = outside_host();
  if (host && host_ && *host != *host_) {
    reached_.clear();
    host_ = host;
    moved_.emit();
  }
  host_ = host;
  announce();
}

void ObservedAddresses::announce() {
  auto now = to_announce();
  if (now == announced_) return;
  announced_ = std::move(now);
  own_.notify();
}

/// Reports are made when a connection opens, and hold as long as it is there.
void ObservedAddresses::prune() {
  const TimePoint limit = self_.runtime.now() - kReportLife;
  const auto is_old = [limit](const Report& report) {
    const auto entry = report.connection.lock();
    return report.at < limit && (!entry || entry->connection->closed());
  };
  for (auto at = reports_.begin(); at != reports_.end();) {
    std::erase_if(at->second, is_old);
    at = at->second.empty() ? reports_.erase(at) : std::next(at);
  }
}

/// Of two hosts that are reported alike, the one that it was before: one liar moves nobody.
std::optional<Multiaddr> ObservedAddresses::most_seen_host(std::uint32_t code) const {
  std::map<Multiaddr, std::size_t> networks;
  for (const auto& [network, reports] : reports_)
    for (const auto& report : reports)
      if (report.address.first_code() == code) ++networks[host_of(report.address)];
  const auto most = std::ranges::max_element(
      networks, {}, [this](const auto& one) { return std::pair(one.second, one.first == host_); });
  return most == networks.end() ? std::nullopt : std::optional(most->first);
}

std::optional<Multiaddr> ObservedAddresses::outside_host() const {
  const auto ip4 = most_seen_host(Multiaddr::ip4);
  return ip4 ? ip4 : most_seen_host(Multiaddr::ip6);
}

std::vector<Multiaddr> ObservedAddresses::confirmed() const {
  std::map<Multiaddr, std::size_t> networks;
  for (const auto& [network, reports] : reports_)
    for (const auto& report : reports)
      if (report.of_listen_port) ++networks[report.address];
  std::vector<Multiaddr> result = reached_;
  for (const auto& [address, count] : networks)
    if (count >= self_.options.observed_confirmations) add_unique(result, address, kMaxConfirmed);
  return result;
}

std::vector<Multiaddr> ObservedAddresses::candidates() const {
  std::vector<Multiaddr> result;
  for (const auto& [network, reports] : reports_)
    for (const auto& report : reports)
      if (report.of_listen_port) add_unique(result, report.address, kMaxBound);
  for (const auto code : {Multiaddr::ip4, Multiaddr::ip6})
    if (const auto host = most_seen_host(code))
      for (const auto& bound : inbound_.bound())
        if (bound.first_code() == code) add_unique(result, bound.with_host_of(*host), kMaxBound);
  return result;
}

void ObservedAddresses::add_reached(const Multiaddr& address) {
  const auto host = most_seen_host(address.first_code());
  if (!self_.endpoint(address) || !host || host_of(address) != *host) return;
  add_unique(reached_, address, kMaxReached);
  announce();
}

void ObservedAddresses::set_unreachable(bool unreachable) {
  unreachable_ = unreachable;
  if (unreachable) reached_.clear();
  announce();
}

}  // namespace cohive::p2p
