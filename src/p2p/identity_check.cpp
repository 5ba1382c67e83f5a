#include "cohive/p2p/identity_check.hpp"

#include "cohive/core/sync.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/p2p/host.hpp"

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

Task<void> ask(Search& search, PeerId id, Multiaddr initial, Deadline deadline) {
  const auto peer = co_await search.stranger.connect(std::move(initial), deadline);
  const bool found = peer && co_await search.stranger.connect_via(id, *peer, deadline);
  if (found) search.found = search.stranger.remote_address(id);
  --search.running;
  search.completed += peer.has_value();
  search.changed.notify_all();
}

}  // namespace

Task<Result<>> check_identity_is_free(transport::Network& network, PeerId id, std::vector<Multiaddr> initial_peers,
                                      transport::TransportOptions options, Deadline deadline) {
  Runtime& runtime = network.runtime();
  HostOptions host_options;
  host_options.routing_server = false;
  host_options.autonat = false;
  host_options.transport = std::move(options);
  Search search(network, std::move(host_options));
  if (auto started = search.stranger.start(); !started) co_return ok();
  Nursery asking(runtime, "identity check");
  for (auto& initial : initial_peers) {
    if (initial.peer() == id) continue;  // all members of a swarm may share one list, in which each finds itself
    ++search.running;
    asking.spawn(ask(search, id, std::move(initial), deadline), "identity check");
  }
  Deadline limit = deadline;
  while (search.running > 0 && !search.found) {
    if (search.completed > 0) limit = limit.min(runtime.after(kGrace));
    if (!co_await search.changed.wait(limit)) break;
  }
  if (!search.found) co_return ok();
  co_return Error(Errc::identity_in_use, id,
                  "it answers at " + search.found->text() + "; end it, or give this process an identity of its own");
}

}  // namespace cohive::p2p
