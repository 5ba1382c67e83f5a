// How much each network has of something scarce: an attacker has one network and any number of identities.
#pragma once

#include <string>
#include <unordered_map>

#include "cohive/core/multiaddr.hpp"

namespace cohive::p2p {

/// What an attacker has one of: an IPv4 address, an IPv6 /64 network. Empty for this machine, which is trusted.
std::string network_of(const Multiaddr& address);

class NetworkShares {
 public:
  /// One unit, counted for its network while it lives. Must not outlive the shares.
  class Share {
   public:
    Share() = default;
    Share(NetworkShares& owner, std::string network) : network_(std::move(network)) {
      if (network_.empty()) return;
      owner_ = &owner;
      ++owner_->counts_[network_];
    }
    Share(Share&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), network_(std::move(other.network_)) {}
    Share& operator=(Share&&) = delete;
    ~Share() {
      if (!owner_) return;
      const auto found = owner_->counts_.find(network_);
      if (--found->second == 0) owner_->counts_.erase(found);
    }

   private:
    NetworkShares* owner_ = nullptr;  ///< null: not counted
    std::string network_;
  };

  Share take(std::string network) { return {*this, std::move(network)}; }
  std::size_t of(const std::string& network) const {
    const auto found = counts_.find(network);
    return found == counts_.end() ? 0 : found->second;
  }

 private:
  std::unordered_map<std::string, std::size_t> counts_;
};

}  // namespace cohive::p2p
