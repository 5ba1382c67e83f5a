#include "port_mapping.hpp"

#include <algorithm>
#include <set>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kLifetime = 10min;      // a port of a peer that crashed is soon its router's again
constexpr Duration kShortestPause = 5s;    // whatever lifetime a router grants
constexpr Duration kMappingRetry = 1min;   // after a failure; doubled with each
constexpr Duration kLongestRetry = 30min;  // the machine may come to another network
constexpr Duration kLookPeriod = 1min;     // between looks whether the machine has slept
constexpr Duration kNap = 10s;             // sleep that does not matter; a clock that is set changes by less, too
constexpr Duration kAnswerTimeout = 1min;  // of a router, which may never end its answer
constexpr std::size_t kMaxPorts = 4;

template <class T>
Task<Result<T>> asked(Runtime& runtime, Task<Result<T>> question) {
  co_return co_await within(runtime, runtime.after(kAnswerTimeout), std::move(question), "a router's answer");
}

}  // namespace

PortMappings::PortMappings(Self& self, Inbound& inbound, OwnAddresses& own, PortMappers& mappers)
    : self_(self),
      inbound_(inbound),
      own_(own),
      mappers_(mappers),
      metrics_(self.runtime.metrics()),
      news_(self.runtime, "another network"),
      interfaces_(inbound.changed().subscribe([this] { on_moved(); })),
      tasks_(self.runtime, "port mapping") {
  own.add_source([this] {
    std::vector<Multiaddr> result;
    for (const auto& [port, held] : held_) result.push_back(held.mapping.outside);
    return result;
  });
}

PortMappings::~PortMappings() {
  for (const auto& [port, held] : held_) gauge(*held.mapper).add(-1);
}

Gauge PortMappings::gauge(const PortMapper& mapper) const {
  if (mapper.protocol() == kPcp) return metrics_.pcp;
  return mapper.protocol() == kUpnp ? metrics_.upnp : metrics_.nat_pmp;
}

/// The ports that other machines may connect to once a router forwards them.
std::vector<std::uint16_t> PortMappings::ports_to_map() const {
  std::set<std::uint16_t> ports;
  for (const auto& address : inbound_.bound()) {
    const auto endpoint = self_.endpoint(address);
    if (endpoint && endpoint->mappable && address.scope() != Multiaddr::Scope::loopback && ports.size() < kMaxPorts)
      ports.insert(endpoint->port);
  }
  return {ports.begin(), ports.end()};
}

void PortMappings::start() {
  auto ports = ports_to_map();
  if (self_.options.nat_port_map && !ports.empty() && !mappers_.empty())
    tasks_.spawn(keep(*this, std::move(ports)), "map ports");
}

std::vector<PortMapping> PortMappings::current() const {
  std::vector<PortMapping> result;
  for (const auto& [port, held] : held_) result.push_back(held.mapping);
  return result;
}

/// The machine may have come to another network, whose router knows nothing of our mappings.
void PortMappings::on_moved() {
  for (auto& [port, held] : held_) held.expires = self_.runtime.now();
  for (const auto& mapper : mappers_) mapper->moved();
  moved_ = true;
  news_.notify_all();
}

/// Tells whether the machine has slept since this was asked last, which the loop's clock leaves out. The lifetimes of
/// mappings are cut accordingly: the router need not know of them any more.
bool PortMappings::has_slept() {
  const TimePoint now = self_.runtime.now();
  const double ahead = self_.runtime.wall_time() - to_seconds(now.time_since_epoch());
  const double slept = ahead - std::exchange(ahead_, ahead);
  if (slept <= to_seconds(kNap)) return false;
  for (auto& [port, held] : held_) held.expires -= from_seconds(slept);
  return true;
}

Task<void> PortMappings::keep(PortMappings& mappings, std::vector<std::uint16_t> ports) {
  Runtime& runtime = mappings.self_.runtime;
  Duration retry = kMappingRetry;
  (void)mappings.has_slept();  // This is what later looks compare with.
  for (;;) {
    mappings.moved_ = false;
    bool all = true;
    for (const auto port : ports) all &= co_await map(mappings, port);
    TimePoint next = runtime.now() + (all ? kLifetime : retry);
    for (const auto& [port, held] : mappings.held_) next = std::min(next, held.renew_at);
    retry = all ? kMappingRetry : std::min(2 * retry, kLongestRetry);
    next = std::max(next, runtime.now() + kShortestPause);
    bool slept = false;
    while (!slept && !mappings.moved_ && runtime.now() < next) {
      (void)co_await mappings.news_.wait(Deadline(std::min(next, runtime.now() + kLookPeriod)));
      slept = mappings.has_slept();
    }
    if (slept || mappings.moved_) retry = kMappingRetry;
  }
}

/// The mapper that has mapped the port before comes first.
std::vector<PortMapper*> PortMappings::order(std::uint16_t port) const {
  const auto at = held_.find(port);
  PortMapper* const proven = at == held_.end() ? nullptr : at->second.mapper;
  std::vector<PortMapper*> result;
  if (proven) result.push_back(proven);
  for (const auto& mapper : mappers_)
    if (mapper.get() != proven) result.push_back(mapper.get());
  return result;
}

Task<bool> PortMappings::map(PortMappings& mappings, std::uint16_t port) {
  Runtime& runtime = mappings.self_.runtime;
  std::string reasons;
  for (PortMapper* mapper : mappings.order(port)) {
    const auto before = mappings.held_.find(port);
    const std::uint16_t wanted =
        before == mappings.held_.end() ? port : mappings.self_.endpoint(before->second.mapping.outside)->port;
    auto mapping = co_await asked(runtime, mapper->map(port, wanted, kLifetime));
    // Behind two routers, the outer address of the first one leads nowhere.
    if (mapping &&
        (!mappings.self_.endpoint(mapping->outside) || mapping->outside.scope() != Multiaddr::Scope::public_)) {
      (void)co_await asked(runtime, mapper->unmap(*mapping));
      mapping = Error(cohive::Errc::not_found,
                      "the router's own address, " + mapping->outside.text() + ", is not a public one");
    }
    if (mapping) {
      const TimePoint now = runtime.now();
      const auto left = mappings.held_.find(port);
      const auto replaced =
          left != mappings.held_.end() && left->second.mapper != mapper ? std::optional(left->second) : std::nullopt;
      mappings.set(port, Held{mapper, *mapping, now + mapping->lifetime / 2, now + mapping->lifetime});
      // Some routers keep a mapping for good.
      if (replaced) (void)co_await asked(runtime, replaced->mapper->unmap(replaced->mapping));
      co_return true;
    }
    reasons += (reasons.empty() ? "" : "; ") + std::string(mapper->protocol()) + ": " + mapping.error().message();
  }
  if (const auto at = mappings.held_.find(port); at != mappings.held_.end()) {
    at->second.renew_at = at->second.expires;
    if (at->second.expires <= runtime.now()) mappings.set(port, std::nullopt);
  }
  mappings.failed(reasons);
  co_return false;
}

void PortMappings::set(std::uint16_t port, std::optional<Held> held) {
  const auto before = held_.find(port);
  const bool had = before != held_.end();
  const bool moved = had != held.has_value() || (had && before->second.mapping.outside != held->mapping.outside);
  if (had) gauge(*before->second.mapper).add(-1);
  if (had) held_.erase(before);
  if (held) {
    gauge(*held->mapper).add(1);
    if (moved)
      log::info("p2p", "the router forwards {} to this node ({})", held->mapping.outside.text(),
                held->mapper->protocol());
    told_ = false;
    held_.insert_or_assign(port, std::move(*held));
  }
  if (!moved) return;
  own_.notify();
  changed_.emit();
}

/// Once: most machines have no such router.
void PortMappings::failed(const std::string& reasons) {
  if (!std::exchange(told_, true)) log::debug("p2p", "no router forwards a port to this node: {}", reasons);
}

Task<void> PortMappings::close(Deadline deadline) {
  tasks_.cancel();
  if (held_.empty()) co_return;
  for (const auto& [port, held] : held_) gauge(*held.mapper).add(-1);
  auto unmapped = co_await within(self_.runtime, deadline, unmap_all(std::exchange(held_, {})), "unmapping ports");
  if (!unmapped) log::debug("p2p", "the router keeps its forwarded ports for a while: {}", unmapped.error());
}

Task<void> PortMappings::unmap_all(std::map<std::uint16_t, Held> held) {
  for (auto& [port, one] : held) (void)co_await one.mapper->unmap(std::move(one.mapping));
}

}  // namespace cohive::p2p
