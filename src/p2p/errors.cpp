#include "cohive/p2p/errors.hpp"

#include <string>

namespace cohive::p2p {
namespace {

class Category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "cohive.p2p"; }
  std::string message(int code) const override {
    switch (static_cast<Errc>(code)) {
      case Errc::no_addresses:
        return "no address of the peer is known";
      case Errc::all_dials_failed:
        return "no address of the peer could be reached";
      case Errc::dial_backoff:
        return "not dialled again so soon after a failure";
      case Errc::dial_to_self:
        return "a peer does not dial itself";
      case Errc::missing_peer_id:
        return "the address must end with /p2p/<peer id>";
      case Errc::ping_mismatch:
        return "the ping came back altered";
      case Errc::too_many_connections:
        return "too many connections";
      case Errc::bootstrap_failed:
        return "none of the initial peers answered";
      case Errc::identify_failed:
        return "the peer did not identify itself";
      case Errc::host_closed:
        return "the host is closed";
    }
    return "unknown p2p error";
  }
};

}  // namespace

const std::error_category& p2p_category() noexcept {
  static const Category category;
  return category;
}

}  // namespace cohive::p2p
