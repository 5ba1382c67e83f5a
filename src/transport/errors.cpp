#include "cohive/transport/errors.hpp"

#include <string>

namespace cohive::transport {
namespace {

class Category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "cohive.transport"; }
  std::string message(int code) const override {
    switch (static_cast<Errc>(code)) {
      case Errc::dial_failed:
        return "cannot connect";
      case Errc::address_unsupported:
        return "this kind of address is not supported (TCP is)";
      case Errc::address_in_use:
        return "the address is in use: choose another port, or 0 for any";
      case Errc::resolve_failed:
        return "the name does not resolve";
      case Errc::handshake_failed:
        return "the encryption handshake failed";
      case Errc::peer_mismatch:
        return "another peer answered than the one named in the address";
      case Errc::protocol_not_supported:
        return "the peer does not support the protocol";
      case Errc::negotiation_failed:
        return "protocol negotiation failed";
      case Errc::muxer_violation:
        return "the peer broke the rules of stream multiplexing";
      case Errc::keepalive_timeout:
        return "the peer stopped answering";
      case Errc::too_many_streams:
        return "too many streams";
      case Errc::both_began:
        return "both sides dialled at the same moment";
      case Errc::decryption_failed:
        return "an encrypted record is damaged or forged";
    }
    return "unknown transport error";
  }
};

}  // namespace

const std::error_category& transport_category() noexcept {
  static const Category category;
  return category;
}

}  // namespace cohive::transport
