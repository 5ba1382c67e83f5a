#include "redial.hpp"

#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kRefusalTime = 1s;  // a machine says no in a round trip; a router gives an absent one up in seconds

}  // namespace

Task<bool> is_refused(p2p::Host& host, PeerId peer) {
  if (host.refuses(peer)) co_return true;
  const auto reached = co_await host.connect_via(peer, PeerId(), host.runtime().after(kRefusalTime));
  if (reached) co_return false;
  const auto is = [error = reached.error()](std::error_code code) { return error == code; };
  co_return host.refuses(peer) || is(transport::Errc::refused) || is(transport::Errc::unreachable) ||
      is(transport::Errc::dial_failed) || is(p2p::Errc::all_dials_failed);
}

}  // namespace cohive::averaging
