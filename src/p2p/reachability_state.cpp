#include "reachability_state.hpp"

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/p2p/errors.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kSuspectAfter = 4s;  // a dial-back that succeeds takes less, one that fails takes longer
constexpr Duration kWarnAfter = 1min;   // by then a peer that dials back has answered, if there is one

}  // namespace

std::string_view to_text(Reachability reachability) {
  switch (reachability) {
    case Reachability::public_:
      return "public";
    case Reachability::private_:
      return "private";
    case Reachability::unknown:
      break;
  }
  return "unknown";
}

std::optional<Reachability> reachability_from_text(std::string_view text) {
  for (const auto one : {Reachability::unknown, Reachability::public_, Reachability::private_})
    if (to_text(one) == text) return one;
  return std::nullopt;
}

ReachabilityState::ReachabilityState(Self& self, Handlers& handlers, const Connectivity& ways, ConnectionTable& table,
                                     const Inbound& inbound, Identify& identify, OwnAddresses& own)
    : self_(self),
      inbound_(inbound),
      own_(own),
      observed_(self, identify, inbound, own),
      server_(self, handlers, ways, own),
      settled_(self.runtime, "reachability"),
      tasks_(self.runtime, "reachability") {
  count(current_, 1);
  if (self.options.autonat && !self.options.force_reachability) {
    client_.emplace(self, table, identify, inbound, observed_, own);
    subscriptions_.push_back(client_->concluded().subscribe([this](Reachability concluded) { set(concluded); }));
  }
  // The AutoNAT client is told first. While it knows nothing about the new place, relays that are wanted there, too,
  // are kept.
  subscriptions_.push_back(observed_.moved().subscribe([this] { translated_.clear(); }));
  subscriptions_.push_back(
      identify.observed().subscribe([this](const ConnectionEntryPtr& entry, const Multiaddr& observed) {
        watch_if_hidden(observed, entry->connection->remote_address());
        watch_if_confirmed(entry->connection->remote_address());
      }));
}

ReachabilityState::~ReachabilityState() {
  count(current_, -1);
}

void ReachabilityState::start() {
  server_.offer(self_.options.autonat);
  if (self_.options.force_reachability) {
    set(*self_.options.force_reachability);
  } else if (!inbound_.listening()) {
    set(Reachability::private_);
  }
}

void ReachabilityState::close() {
  tasks_.cancel();
  if (client_) client_->close();
  settled_.notify_all();
}

void ReachabilityState::count(Reachability reachability, double sign) {
  const auto gauge = reachability == Reachability::public_    ? self_.metrics.reachability_public
                     : reachability == Reachability::private_ ? self_.metrics.reachability_private
                                                              : self_.metrics.reachability_unknown;
  gauge.add(sign);
}

void ReachabilityState::set(Reachability reachability) {
  if (reachability == current_) return;
  count(current_, -1);
  current_ = reachability;
  count(current_, 1);
  // A host that cannot be reached may not reach other peers either, and would tell them so.
  server_.offer(self_.options.autonat && current_ != Reachability::private_);
  const auto seen = observed_.outside_host();
  if (current_ == Reachability::public_) {
    log::info("p2p", "peers outside can connect to this node");
  } else if (current_ == Reachability::private_ && inbound_.listening() && seen && !self_.options.force_reachability) {
    warn(*seen);
  }
  changed_.emit(current_);
  settled_.notify_all();
}

Task<Result<Reachability>> ReachabilityState::wait(Deadline deadline) {
  while (current_ == Reachability::unknown) {
    if (self_.closed) co_return Error(Errc::host_closed);
    if (!co_await settled_.wait(deadline)) co_return Error(cohive::Errc::timeout, "reachability");
  }
  co_return current_;
}

// ---- What our user should know

/// A node that announces only addresses of its own network may still be found reachable. Its relays' addresses say
/// nothing about where it is itself.
void ReachabilityState::watch_if_hidden(const Multiaddr& observed, const Multiaddr& observer) {
  const std::uint32_t family = observed.first_code();
  if (translated(family) || !self_.endpoint(observed) || !inbound_.listening() || self_.options.force_reachability)
    return;
  auto own = own_.announced();
  std::erase_if(own, [](const Multiaddr& address) { return address.is_circuit(); });
  if (!hidden_from_outside(std::move(own), observed, observer)) return;
  translated_.insert(family);
  tasks_.spawn(warn_unless_reached(*this, observed), "hidden node");
  suspecting_.emit();
}

/// A host behind a firewall looks like a public one until a dial-back has failed, which takes a while.
void ReachabilityState::watch_if_confirmed(const Multiaddr& observer) {
  if (unconfirmed_ != Unconfirmed::no || current_ != Reachability::unknown || !inbound_.listening() ||
      self_.options.force_reachability || !is_public_host(observer))
    return;
  unconfirmed_ = Unconfirmed::pending;
  tasks_.spawn(suspect_unless_reached(*this), "unconfirmed node");
}

Task<void> ReachabilityState::suspect_unless_reached(ReachabilityState& state) {
  co_await state.self_.runtime.sleep_for(kSuspectAfter);
  state.unconfirmed_ = Unconfirmed::yes;
  if (state.current_ == Reachability::unknown) state.suspecting_.emit();
}

Task<void> ReachabilityState::warn_unless_reached(ReachabilityState& state, Multiaddr observed) {
  co_await state.self_.runtime.sleep_for(kWarnAfter);
  if (state.current_ == Reachability::unknown) state.warn(observed);
}

/// Peers outside find no such node, and rounds that need it fail for reasons that only the node itself can explain.
void ReachabilityState::warn(const Multiaddr& observed) {
  if (std::exchange(warned_, true)) return;
  std::string ports;
  for (const auto& bound : inbound_.bound())
    if (const auto port = bound.value(Multiaddr::tcp); port && ports.find(*port) == std::string::npos)
      ports += (ports.empty() ? "" : " and ") + *port;
  log::warn("p2p",
            "peers outside see this node at {}, but {} connect to it: open or forward TCP port {} there and announce "
            "that address, else run this node as a client",
            observed.value(observed.first_code()).value_or(observed.text()),
            current_ == Reachability::private_ ? "cannot" : "may be unable to", ports);
}

}  // namespace cohive::p2p
