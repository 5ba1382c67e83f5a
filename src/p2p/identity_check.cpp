#include "cohive/p2p/identity_check.hpp"

#include <algorithm>

#include "cohive/core/crypto.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kGrace = 500ms;  // for the other initial peers, once one of them has helped to search

/// A host that the swarm does not know, and what it has found out.
struct Search {
  Search(transport::Network& network, HostOptions options)
      : stranger(network, KeyPair::generate_ed25519(), std::move(options)),
        changed(network.runtime(), "identity check") {}
  Host stranger;
  Condition changed;
  std::size_t running = 0, completed = 0;
  std::optional<Multiaddr> found;
};

HostOptions options_of_a_stranger(transport::TransportOptions transport) {
  HostOptions options;
  options.routing_server = false;
  options.autonat = false;
  options.transport = std::move(transport);
  return options;
}

Error in_use(const PeerId& id, const Multiaddr& where) {
  return Error(Errc::identity_in_use, id,
               "it answers at " + where.text() + "; end it, or give this process an identity of its own");
}

Task<void> ask(Search& search, PeerId id, Multiaddr initial, Deadline deadline) {
  const auto peer = co_await search.stranger.connect(std::move(initial), deadline);
  const bool found = peer && (*peer == id || co_await search.stranger.connect_via(id, *peer, deadline));
  if (found) search.found = search.stranger.remote_address(id);
  --search.running;
  search.completed += peer.has_value();
  search.changed.notify_all();
}

// ---- The host's own addresses

const std::string kNumberProtocol = "/cohive/process/1.0.0";
constexpr Duration kAnswerTimeout = 5s;
constexpr Duration kFirstPause = 1s, kLongestPause = 10min;

/// The number of the process that proves the identity at `address`, as it says; nullopt for one that knows no such
/// question.
Task<Result<std::optional<Bytes>>> number_at(Host& stranger, PeerId id, Multiaddr address, std::size_t size,
                                             Deadline deadline) {
  CO_TRY(co_await stranger.connect(std::move(address), deadline));
  auto stream = co_await stranger.open_stream(id, kNumberProtocol, deadline);
  if (!stream && stream.error() == transport::Errc::protocol_not_supported) co_return std::optional<Bytes>();
  if (!stream) co_return stream.error();
  transport::StreamReader reader(**stream);
  CO_TRY(auto number, co_await reader.read_exactly(size, deadline));
  co_return std::optional(std::move(number));
}

}  // namespace

Task<Result<>> check_identity_is_free(transport::Network& network, PeerId id, std::vector<Multiaddr> initial_peers,
                                      transport::TransportOptions options, Deadline deadline) {
  Runtime& runtime = network.runtime();
  Search search(network, options_of_a_stranger(std::move(options)));
  if (auto started = search.stranger.start(); !started) co_return ok();
  Nursery asking(runtime, "identity check");
  for (auto& initial : initial_peers) {
    ++search.running;
    asking.spawn(ask(search, id, std::move(initial), deadline), "identity check");
  }
  Deadline limit = deadline;
  while (search.running > 0 && !search.found) {
    if (search.completed > 0) limit = limit.min(runtime.after(kGrace));
    if (!co_await search.changed.wait(limit)) break;
  }
  if (search.found) co_return in_use(id, *search.found);
  co_return ok();
}

std::vector<Multiaddr> take_own_addresses(std::vector<Multiaddr>& initial_peers, const PeerId& self) {
  std::vector<Multiaddr> own;
  std::erase_if(initial_peers, [&](const Multiaddr& address) {
    if (address.peer() != self) return false;
    log::info("p2p", "initial peer {} is this peer itself: left out", address.text());
    own.push_back(address);
    return true;
  });
  return own;
}

OwnAddressCheck::OwnAddressCheck(transport::Network& network, Host& host) : network_(network), host_(host) {
  crypto::random_bytes(number_);
  host_.set_handler(kNumberProtocol, [this](transport::StreamPtr stream) { return answer(std::move(stream)); });
}

OwnAddressCheck::~OwnAddressCheck() {
  host_.remove_handler(kNumberProtocol);
}

Task<void> OwnAddressCheck::answer(transport::StreamPtr stream) {
  const auto sent = co_await stream->write(number_, host_.runtime().after(kAnswerTimeout));
  if (sent) stream->close_write();
}

Task<Result<bool>> OwnAddressCheck::leads_here(Multiaddr address, Deadline deadline) {
  Host stranger(network_, KeyPair::generate_ed25519(), options_of_a_stranger(host_.options().transport));
  if (auto started = stranger.start(); !started) co_return false;
  const auto number = co_await number_at(stranger, host_.id(), address, number_.size(), deadline);
  if (!number) co_return false;
  if (!*number || !std::ranges::equal(**number, number_)) co_return in_use(host_.id(), address);
  co_return true;
}

Task<Error> OwnAddressCheck::find_another(std::vector<Multiaddr> addresses) {
  Runtime& runtime = host_.runtime();
  for (Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    for (auto at = addresses.begin(); at != addresses.end();) {
      const auto led = co_await leads_here(*at, runtime.after(kAnswerTimeout));
      if (!led) co_return led.error();
      at = *led ? addresses.erase(at) : std::next(at);
    }
    if (addresses.empty()) co_await Event(runtime, "nothing left to check").wait();
    co_await runtime.sleep_for(pause);
  }
}

}  // namespace cohive::p2p
