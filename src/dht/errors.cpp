#include "cohive/dht/errors.hpp"

#include "cohive/core/error_category.hpp"

namespace cohive::dht {
namespace {

constexpr ErrorSentence<Errc> kSentences[] = {
    {Errc::bootstrap_failed, "none of the initial peers answered a DHT ping"},
    {Errc::clock_differs, "the clocks of this machine and of the initial peer differ by more than 3 seconds"},
    {Errc::not_reachable,
     "the initial peer could not call this node back (if it is behind a firewall, use client mode)"},
    {Errc::malformed_reply, "the DHT reply does not match its request"},
    {Errc::malformed_request, "malformed DHT request"},
    {Errc::too_many_keys, "too many keys in one DHT request"},
    {Errc::no_node_id, "the peer does not serve the DHT"},
    {Errc::closed, "the DHT node is closed"},
    {Errc::unauthorized, "not proven to belong to this swarm: no valid token, signature or time"},
    {Errc::not_found, "the DHT has no record of the key"},
    {Errc::unreachable, "no other DHT node answered"},
    {Errc::record_refused,
     "the DHT nodes refused the record: they keep one that expires no earlier, or do not accept this one"},
    {Errc::record_invalid, "a validator refuses the record"},
};

}  // namespace

const std::error_category& dht_category() noexcept {
  static const ErrorCategory<kSentences> category("cohive.dht");
  return category;
}

}  // namespace cohive::dht
