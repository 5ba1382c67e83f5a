// A network that does as another one does, but for what a class derived from it overrides.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "cohive/transport/network.hpp"

namespace cohive::transport {

class ForwardingNetwork : public Network {
 public:
  /// \param to  outlives this network
  explicit ForwardingNetwork(Network& to) : to_(to) {}
  explicit ForwardingNetwork(std::unique_ptr<Network> to) : owned_(std::move(to)), to_(*owned_) {}

  Runtime& runtime() override { return to_.runtime(); }
  Result<std::unique_ptr<Listener>> listen(const Multiaddr& address) override { return to_.listen(address); }
  using Network::dial;
  Task<Result<std::unique_ptr<RawConnection>>> dial(Multiaddr address, std::optional<Multiaddr> from,
                                                    Deadline deadline) override {
    return to_.dial(std::move(address), std::move(from), deadline);
  }
  BandwidthLimits limits() const override { return to_.limits(); }
  std::size_t max_connections() const override { return to_.max_connections(); }

 private:
  const std::unique_ptr<Network> owned_;
  Network& to_;
};

}  // namespace cohive::transport
