// Whether the host can be reached: what our user says, or what dial-backs show. What follows from it is done here:
// which peers we dial back, what our user is told.
#pragma once

#include <set>

#include "autonat_client.hpp"
#include "autonat_server.hpp"

namespace cohive::p2p {

class ReachabilityState {
 public:
  ReachabilityState(Self& self, Handlers& handlers, const Connectivity& ways, ConnectionTable& table,
                    const Inbound& inbound, Identify& identify, OwnAddresses& own);
  ~ReachabilityState();
  /// To be called once the host listens.
  void start();
  void close();

  Reachability current() const noexcept { return current_; }
  Signal<Reachability>& changed() noexcept { return changed_; }
  /// Nothing is known yet, but peers outside see us at addresses that are none of ours: an address translator is
  /// between. Or none of them has reached us for a while: a firewall may be.
  bool suspected() const {
    return current_ == Reachability::unknown && (!translated_.empty() || unconfirmed_ == Unconfirmed::yes);
  }
  /// Where we are now, peers outside have seen us at addresses of this kind, a multiaddr code, that were none of ours.
  /// A dial-back that reaches us there says less: its peer is one that we have dialled, and many routers let in no
  /// other peers.
  bool translated(std::uint32_t family) const { return translated_.contains(family); }
  Signal<>& suspecting() noexcept { return suspecting_; }
  /// There is another way in than when peers were asked.
  void ask_again() {
    if (client_) client_->ask_again();
  }
  /// Where peers outside see the ports that we listen on.
  std::vector<Multiaddr> observed() const { return observed_.candidates(); }
  /// Waits until it is known, see Host::wait_for_reachability.
  Task<Result<Reachability>> wait(Deadline deadline);

 private:
  void set(Reachability reachability);
  void count(Reachability reachability, double sign);
  void watch_if_hidden(const Multiaddr& observed, const Multiaddr& observer);
  void watch_if_confirmed(const Multiaddr& observer);
  static Task<void> suspect_unless_reached(ReachabilityState& state);
  static Task<void> warn_unless_reached(ReachabilityState& state, Multiaddr observed);
  void warn(const Multiaddr& observed);

  Self& self_;
  const Inbound& inbound_;
  const OwnAddresses& own_;
  ObservedAddresses observed_;
  AutoNatServer server_;
  std::optional<AutoNatClient> client_;
  Reachability current_ = Reachability::unknown;
  Signal<Reachability> changed_;
  Signal<> suspecting_;
  Condition settled_;
  std::set<std::uint32_t> translated_;  ///< kinds of address, as multiaddr codes
  bool warned_ = false;                 ///< our user: once is enough, wherever we move
  enum class Unconfirmed { no, pending, yes } unconfirmed_ = Unconfirmed::no;
  std::vector<Subscription> subscriptions_;
  TaskGroup tasks_;
};

}  // namespace cohive::p2p
