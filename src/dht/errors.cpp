#include "cohive/dht/errors.hpp"

#include <string>

namespace cohive::dht {
namespace {

class Category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "cohive.dht"; }
  std::string message(int code) const override {
    switch (static_cast<Errc>(code)) {
      case Errc::bootstrap_failed:
        return "none of the initial peers answered a DHT ping";
      case Errc::clock_differs:
        return "the clocks of this machine and of the initial peer differ by more than 3 seconds";
      case Errc::not_reachable:
        return "the initial peer could not call this node back (if it is behind a firewall, use client mode)";
      case Errc::malformed_reply:
        return "the DHT reply does not match its request";
      case Errc::malformed_request:
        return "malformed DHT request";
      case Errc::too_many_keys:
        return "too many keys in one DHT request";
      case Errc::no_node_id:
        return "the peer does not serve the DHT";
      case Errc::closed:
        return "the DHT node is closed";
      case Errc::unauthorized:
        return "not proven to belong to this swarm: no valid token, signature or time";
    }
    return "unknown dht error";
  }
};

}  // namespace

const std::error_category& dht_category() noexcept {
  static const Category category;
  return category;
}

}  // namespace cohive::dht
