#include "cohive/transport/errors.hpp"

#include "cohive/core/error_category.hpp"

namespace cohive::transport {
namespace {

constexpr ErrorSentence<Errc> kSentences[] = {
    {Errc::dial_failed, "cannot connect"},
    {Errc::address_unsupported, "this kind of address is not supported (TCP is)"},
    {Errc::address_in_use, "the address is in use: choose another port, or 0 for any"},
    {Errc::resolve_failed, "the name does not resolve"},
    {Errc::handshake_failed, "the encryption handshake failed"},
    {Errc::peer_mismatch, "another peer answered than the one named in the address"},
    {Errc::protocol_not_supported, "the peer does not support the protocol"},
    {Errc::negotiation_failed, "protocol negotiation failed"},
    {Errc::muxer_violation, "the peer broke the rules of stream multiplexing"},
    {Errc::keepalive_timeout, "the peer stopped answering"},
    {Errc::too_many_streams, "too many streams"},
    {Errc::both_began, "both sides dialled at the same moment"},
    {Errc::decryption_failed, "an encrypted record is damaged or forged"},
    {Errc::refused, "nothing listens there"},
    {Errc::unreachable, "there is no way to it from here"},
};

}  // namespace

const std::error_category& transport_category() noexcept {
  static const ErrorCategory<kSentences> category("cohive.transport");
  return category;
}

}  // namespace cohive::transport
