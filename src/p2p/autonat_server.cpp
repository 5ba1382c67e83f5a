#include "autonat_server.hpp"

#include <algorithm>

#include "cohive/core/task_group.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kMaxAutoNatStreams = 2;  // of one peer, as go-libp2p
constexpr Duration kRequestTimeout = 10s;
// p2pd dials for 15 s. A peer behind a router announces its relays once it knows that no peer outside reaches it, and
// it is to be found within ten seconds; a second and a third attempt of TCP fall into five.
constexpr Duration kDialTimeout = 5s;
constexpr std::size_t kMaxDialBacks = 4;  // of one request at once
constexpr AttemptLimits::Limits kLimits{.window = 60s, .per_peer = 3, .per_network = 10, .in_all = 30};

DialBackResponse refused(DialBackStatus status, std::string text) {
  return {status, std::move(text), std::nullopt};
}

}  // namespace

AutoNatServer::AutoNatServer(Self& self, Handlers& handlers, const Connectivity& ways, const OwnAddresses& own)
    : self_(self), handlers_(handlers), ways_(ways), own_(own), limits_(self.runtime, kLimits) {}

void AutoNatServer::offer(bool offered) {
  if (std::exchange(offered_, offered) == offered) return;
  if (offered) {
    handlers_.add(
        kAutoNatProtocol, [this](transport::StreamPtr stream) { return serve(std::move(stream)); }, kMaxAutoNatStreams);
  } else {
    handlers_.remove(kAutoNatProtocol);
  }
}

Task<void> AutoNatServer::serve(transport::StreamPtr stream) {
  transport::StreamReader reader(*stream);
  auto bytes = co_await reader.read_message(kMaxAutoNatMessage, self_.runtime.after(kRequestTimeout));
  if (!bytes || !*bytes) co_return;
  const auto response = co_await answer(**bytes, stream->peer(), stream->remote_address());
  switch (response.status) {
    case proto::AutoNat::OK:
      self_.metrics.dial_backs_ok.increment();
      break;
    case proto::AutoNat::E_DIAL_ERROR:
      self_.metrics.dial_backs_failed.increment();
      break;
    default:
      self_.metrics.dial_backs_refused.increment();
  }
  auto sent =
      co_await transport::write_message(*stream, as_bytes(encode(response)), self_.runtime.after(kRequestTimeout));
  if (sent) stream->close_write();
}

Task<DialBackResponse> AutoNatServer::answer(ByteView bytes, PeerId peer, Multiaddr observed) {
  auto request = parse_dial_back_request(bytes);
  if (!request) co_return refused(proto::AutoNat::E_BAD_REQUEST, "malformed request");
  if (!request->peer.empty() && request->peer != peer)
    co_return refused(proto::AutoNat::E_BAD_REQUEST, "peer id mismatch");
  if (is_blocked(observed))
    co_return refused(proto::AutoNat::E_DIAL_REFUSED, "refusing to dial peer with blocked observed address");
  auto candidates = dial_back_candidates(observed, request->addresses);
  std::erase_if(candidates, [this](const Multiaddr& address) { return !stranger_for(address); });
  if (candidates.empty()) co_return refused(proto::AutoNat::E_DIAL_REFUSED, "no dialable addresses");
  if (!limits_.take(peer, network_of(observed))) co_return refused(proto::AutoNat::E_DIAL_REFUSED, "too many dials");

  const TimePoint end = self_.runtime.now() + kDialTimeout;
  auto reached = co_await dial_back(peer, std::move(candidates), end);
  if (reached) co_return DialBackResponse{proto::AutoNat::OK, {}, std::move(reached)};
  // How soon it failed would tell what is at an address, so that we would scan ports for the peer.
  co_await self_.runtime.sleep_until(end);
  co_return refused(proto::AutoNat::E_DIAL_ERROR, "dial failed");
}

/// Private networks have no outside to be reached from; behind our own address there may be the same machine.
bool AutoNatServer::is_blocked(const Multiaddr& observed) const {
  if (!is_public_host(observed)) return true;
  const auto own = own_.announced();
  const std::string subnet = networks_of(observed).subnet;  // a neighbour in the block is another machine
  return std::ranges::any_of(own, [&](const Multiaddr& address) { return networks_of(address).subnet == subnet; });
}

transport::Transport* AutoNatServer::stranger_for(const Multiaddr& address) {
  if (strangers_.empty()) {
    const transport::Upgrader stranger(self_.runtime, KeyPair::generate_ed25519(), self_.options.transport,
                                       self_.memory);
    for (const auto& make : ways_.transports) strangers_.push_back(make(stranger));
  }
  return transport::transport_for(strangers_, address);
}

/// How the dials of one request stand.
struct AutoNatServer::DialBack {
  std::vector<Multiaddr> waiting;  // addresses that have not been dialled, the next one last
  std::optional<Multiaddr> reached;
  std::size_t running;
  Event done;
};

/// The first address at which the peer answers.
Task<std::optional<Multiaddr>> AutoNatServer::dial_back(PeerId peer, std::vector<Multiaddr> candidates, TimePoint end) {
  const std::size_t at_once = std::min(candidates.size(), kMaxDialBacks);
  std::ranges::reverse(candidates);
  DialBack state{std::move(candidates), std::nullopt, at_once, Event(self_.runtime, "dial-backs")};
  Nursery dials(self_.runtime, "dial-back");
  for (std::size_t i = 0; i < at_once; ++i) dials.spawn(try_some(*this, peer, state, end), "dial-back");
  co_await state.done.wait();
  co_return std::move(state.reached);
}

/// Dials one address after another, until the peer has answered at one.
Task<void> AutoNatServer::try_some(AutoNatServer& server, PeerId peer, DialBack& state, TimePoint end) {
  while (!state.reached && !state.waiting.empty() && server.self_.runtime.now() < end) {
    const Multiaddr address = std::move(state.waiting.back());
    state.waiting.pop_back();
    auto connection = co_await server.stranger_for(address)->dial(
        address, {.expected = peer, .deadline = Deadline(end), .from_listen_port = false});
    if (connection && !state.reached) state.reached = address;
  }
  if (--state.running == 0 || state.reached) state.done.set();
}

}  // namespace cohive::p2p
