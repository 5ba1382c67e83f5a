#include "observed_addresses.hpp"

#include <algorithm>
#include <map>

#include "cohive/core/network_of.hpp"
#include "p2p/detail/network_block.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kReportLife = 40min;  // as p2pd
constexpr std::size_t kMaxNetworks = 64;
constexpr std::size_t kMaxReportsOfNetwork = 4;  // by IPv4 and IPv6, of two transports
constexpr std::size_t kMaxConfirmed = 4, kMaxReached = 4, kMaxBound = 8;
constexpr std::size_t kMoved = 2;  // networks that agree about a new place: one may lie

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
  forget([limit = self_.runtime.now() - kReportLife](const Report& one) { return one.at < limit; });
  const auto network = network_block(observer);
  if (!network || (!reports_.contains(*network) && reports_.size() >= kMaxNetworks)) return;
  auto& reports = reports_[*network];
  const Multiaddr address = observed.without_peer();
  std::erase_if(reports, [&](const Report& one) { return one.address.same_protocols(address); });
  if (reports.size() < kMaxReportsOfNetwork)
    reports.push_back({address, of_listen_port(*entry->connection), self_.runtime.now(), entry});

  const auto before = std::exchange(host_, outside_host());
  if (before && host_ && has_moved(*before)) {
    reached_.clear();
    forget([this](const Report& one) { return host_of(one.address) != *host_; });
    moved_.emit();
  }
  announce();
}

void ObservedAddresses::announce() {
  auto now = to_announce();
  if (now == announced_) return;
  announced_ = std::move(now);
  own_.notify();
}

/// Reports are made when a connection opens, and hold as long as it is there.
bool ObservedAddresses::Report::holds() const {
  const auto entry = connection.lock();
  return entry && !entry->connection->closed();
}

/// Those that hold stay.
void ObservedAddresses::forget(const std::function<bool(const Report&)>& which) {
  for (auto at = reports_.begin(); at != reports_.end();) {
    std::erase_if(at->second, [&](const Report& one) { return which(one) && !one.holds(); });
    at = at->second.empty() ? reports_.erase(at) : std::next(at);
  }
}

bool ObservedAddresses::holds_at(const Multiaddr& host) const {
  return std::ranges::any_of(reports_, [&](const auto& network) {
    return std::ranges::any_of(network.second,
                               [&](const Report& one) { return one.holds() && host_of(one.address) == host; });
  });
}

/// Tells whether we are no longer where most networks saw us before. A machine has an IPv4 and an IPv6 address at once:
/// that the other one is seen most now says nothing while a connection shows the one before. Of IPv6 it has several in
/// one /64, and changes them daily.
bool ObservedAddresses::has_moved(const Multiaddr& before) const {
  if (*host_ == before) return false;
  if (host_->first_code() != before.first_code()) return !holds_at(before);
  return networks_of(*host_).subnet != networks_of(before).subnet;
}

/// Of two hosts that are reported alike, the one that it was before, else IPv4: one liar moves nobody. A machine that
/// has moved has lost all connections. What peers said on those, however many they were, counts for nothing once two
/// networks agree about another place and no connection is left that shows the old one.
std::optional<Multiaddr> ObservedAddresses::most_seen_host(std::initializer_list<std::uint32_t> families) const {
  std::map<Multiaddr, std::size_t> networks, holding;
  for (const auto& [network, reports] : reports_)
    for (const auto& report : reports) {
      if (std::ranges::find(families, report.address.first_code()) == families.end()) continue;
      ++networks[host_of(report.address)];
      if (report.holds()) ++holding[host_of(report.address)];
    }
  const auto most_of = [this](const std::map<Multiaddr, std::size_t>& hosts) {
    return std::ranges::max_element(hosts, {},
                                    [this](const auto& one) { return std::pair(one.second, one.first == host_); });
  };
  if (const auto now = most_of(holding); now != holding.end() && now->second >= kMoved && host_ && !holds_at(*host_))
    return now->first;
  const auto most = most_of(networks);
  return most == networks.end() ? std::nullopt : std::optional(most->first);
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
    if (const auto host = most_seen_host({code}))
      for (const auto& bound : inbound_.bound())
        if (bound.first_code() == code) add_unique(result, bound.with_host_of(*host), kMaxBound);
  return result;
}

void ObservedAddresses::add_reached(const Multiaddr& address) {
  const auto host = most_seen_host({address.first_code()});
  if (!self_.endpoint(address) || !host || host_of(address) != *host) return;
  if (std::ranges::find(reached_, address) != reached_.end()) return;
  if (reached_.size() == kMaxReached) reached_.erase(reached_.begin());
  reached_.push_back(address);
  announce();
}

void ObservedAddresses::set_unreachable(bool unreachable) {
  unreachable_ = unreachable;
  if (unreachable) reached_.clear();
  announce();
}

}  // namespace cohive::p2p
