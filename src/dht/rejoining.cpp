// The way back into a swarm. A node that slept, or whose network was away, has lost all nodes that it knew, and they
// have lost it; the two sides of a network that fell apart still know their own, so that a full table proves nothing.
// In both cases the initial peers, which all nodes began with, are what the parts have in common.
#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "dht_impl.hpp"

namespace cohive::dht {
namespace {

constexpr Duration kFirstRetry = 1s, kLastRetry = 15s;  // of a node that knows no other: its line may be back
// Between two looks for an initial peer that is missing from the table. A table that is full lacks it for no reason,
// and whether one is missing whose address names no peer shows only when it is dialled.
constexpr Duration kLookPeriod = 60s, kLookPeriodOfMany = 600s;

}  // namespace

/// Not all at the same moment: nodes that began together look at different times.
Duration Dht::Impl::spread(Duration period) const {
  const double place = static_cast<double>(protocol.node_id.bytes[0]) / 255;
  return std::chrono::duration_cast<Duration>(period * (0.75 + 0.5 * place));
}

Task<void> Dht::Impl::stay_joined() {
  Duration pause = kFirstRetry;
  Deadline next_name = runtime.after(spread(kLookPeriodOfMany));
  for (std::size_t turn = 0;; ++turn) {
    if (protocol.table.size() > 0) {
      pause = kFirstRetry;
      const Duration period = protocol.table.size() < options.bucket_size ? kLookPeriod : kLookPeriodOfMany;
      const Deadline next = runtime.after(spread(period));
      while (protocol.table.size() > 0)
        if (!co_await protocol.alone.wait(next)) break;
      if (protocol.table.size() > 0) co_await look_for_missing(turn);
      if (next_name.passed(runtime.now())) {
        next_name = runtime.after(spread(kLookPeriodOfMany));
        co_await look_behind_a_name();
      }
      continue;
    }
    if (initial.empty() && protocol.former.empty()) {  // the first of its swarm: other nodes come to it
      co_await protocol.alone.wait();
      continue;
    }
    log::debug("dht", "all nodes are lost: trying {} initial peers and {} of those known before", initial.size(),
               protocol.former.size());
    std::vector<Task<bool>> attempts;
    for (const auto& address : initial) attempts.push_back(meet(address));
    for (const auto& peer : protocol.former) attempts.push_back(meet(peer));
    const auto met = co_await when_all(runtime, std::move(attempts));
    if (std::find(met.begin(), met.end(), true) != met.end()) {
      metrics.rejoined.increment();
      co_await be_known(Deadline::never());
      log::info("dht", "in the swarm again: {} nodes known", protocol.table.size());
    } else {
      co_await runtime.sleep_for(spread(pause));
      pause = std::min(2 * pause, kLastRetry);
    }
  }
}

/// Asks an initial peer that is missing from the table or, where there are no initial peers, a node known before.
Task<void> Dht::Impl::look_for_missing(std::size_t turn) {
  std::vector<Multiaddr> missing;
  for (const auto& address : initial) {
    const auto peer = address.peer();
    if (peer && *peer != protocol.host.id() && !protocol.table.id_of(*peer)) missing.push_back(address);
  }
  if (!missing.empty()) {
    const Multiaddr address = missing[turn % missing.size()];
    if (!co_await meet(address)) co_return;
    log::info("dht", "found {} again", address.text());
  } else if (initial.empty() && !protocol.former.empty()) {
    const PeerId peer = protocol.former.front();
    protocol.former.pop_front();  // it has this one chance
    if (!co_await meet(peer)) co_return;
    log::info("dht", "found {} again", peer);
  } else {
    co_return;
  }
  co_await be_known(Deadline::never());
}

/// Asks an initial peer whose address names none, such as a DNS name: who is behind it may be of another part of the
/// swarm.
Task<void> Dht::Impl::look_behind_a_name() {
  std::vector<Multiaddr> names;
  for (const auto& address : initial)
    if (!address.peer()) names.push_back(address);
  if (names.empty()) co_return;
  if (co_await meet(names[runtime.random()() % names.size()])) co_await be_known(Deadline::never());
}

Task<bool> Dht::Impl::meet(Multiaddr address) {
  co_return (co_await join_through(std::move(address), runtime.after(options.wait_timeout), false)).has_value();
}

Task<bool> Dht::Impl::meet(PeerId peer) {
  co_return (co_await greet(peer, false)).has_value();
}

}  // namespace cohive::dht
