// AutoNAT, the asking side: has peers outside dial us back, and concludes whether we can be reached.
// Source: docs/wire/libp2p.md, section 6.1.
#pragma once

#include <unordered_map>

#include "autonat_message.hpp"
#include "cohive/p2p/reachability.hpp"
#include "identify.hpp"
#include "observed_addresses.hpp"

namespace cohive::p2p {

/// What dial-backs say together. One peer may lie or have a bad line, so peers of several networks are asked and the
/// latest verdict of each counts. A dial-back that succeeds weighs as much as two that fail: it could not have
/// succeeded by mistake.
class ReachabilityVerdicts {
 public:
  /// Adds a verdict, in place of an earlier one of the same network.
  void add(std::uint64_t network, bool reached, TimePoint now);
  void clear() { verdicts_.clear(); }
  Reachability conclusion(TimePoint now);
  bool has_of(std::uint64_t network) const { return verdicts_.contains(network); }
  /// Returns whether more networks had better be asked soon.
  bool is_settled() const { return verdicts_.size() >= kEnough; }

 private:
  static constexpr std::size_t kEnough = 3, kMost = 8;
  static constexpr Duration kLife = 1h;
  struct Verdict {
    bool reached;
    TimePoint at;
  };
  std::unordered_map<std::uint64_t, Verdict> verdicts_;
};

/// Sends a request on a stream of its own and waits for the answer.
Task<Result<DialBackResponse>> request_dial_back(transport::Stream& stream, DialBackRequest request, Deadline deadline);

class AutoNatClient {
 public:
  AutoNatClient(Self& self, ConnectionTable& table, Identify& identify, const Inbound& inbound,
                ObservedAddresses& observed, const OwnAddresses& own);
  void close() { tasks_.cancel(); }
  /// What was said before says little: there is another way in now. Asks again soon, and believes the old until then.
  void ask_again();

  Reachability conclusion() const noexcept { return conclusion_; }
  Signal<Reachability>& concluded() noexcept { return concluded_; }

 private:
  void consider(const PeerId& peer);
  static Task<void> run(AutoNatClient& client);
  std::optional<PeerId> choose_server();
  bool is_server(const PeerId& peer, const ConnectedPeer& known) const;
  DialBackRequest make_request() const;
  static Task<Result<DialBackResponse>> ask(AutoNatClient& client, PeerId server, DialBackRequest request,
                                            Deadline deadline);
  /// \param asked  the addresses of the request
  void take(const PeerId& server, const std::vector<Multiaddr>& asked, const Result<DialBackResponse>& response);
  void start_again();
  Duration pause();

  Self& self_;
  ConnectionTable& table_;
  const Inbound& inbound_;
  ObservedAddresses& observed_;
  const OwnAddresses& own_;
  ReachabilityVerdicts verdicts_;
  Reachability conclusion_ = Reachability::unknown;
  Signal<Reachability> concluded_;
  std::unordered_map<PeerId, TimePoint> asked_;  ///< lately
  std::vector<Subscription> subscriptions_;
  Condition news_;  ///< a server has come, or we have moved
  TaskGroup tasks_;
};

}  // namespace cohive::p2p
