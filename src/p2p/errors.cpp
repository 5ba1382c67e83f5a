#include "cohive/p2p/errors.hpp"

#include "cohive/core/error_category.hpp"

namespace cohive::p2p {
namespace {

constexpr ErrorSentence<Errc> kSentences[] = {
    {Errc::no_addresses, "no address of the peer is known"},
    {Errc::all_dials_failed, "no address of the peer could be reached"},
    {Errc::dial_backoff, "not dialled again so soon after a failure"},
    {Errc::dial_to_self, "a peer does not dial itself"},
    {Errc::missing_peer_id, "the address must end with /p2p/<peer id>"},
    {Errc::ping_mismatch, "the ping came back altered"},
    {Errc::too_many_connections, "too many connections"},
    {Errc::bootstrap_failed, "none of the initial peers answered"},
    {Errc::identify_failed, "the peer did not identify itself"},
    {Errc::host_closed, "the host is closed"},
    {Errc::relay_refused, "the relay refused"},
    {Errc::identity_in_use, "another process takes part in the swarm under this identity"},
    {Errc::banned, "the peer has misbehaved lately"},
};

}  // namespace

const std::error_category& p2p_category() noexcept {
  static const ErrorCategory<kSentences> category("cohive.p2p");
  return category;
}

}  // namespace cohive::p2p
