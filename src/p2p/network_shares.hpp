// How much each network has of something scarce: an attacker has one network and any number of identities.
#pragma once

#include <algorithm>
#include <string>
#include <unordered_map>

#include "cohive/core/memory_budget.hpp"

namespace cohive::p2p {

using cohive::network_of;

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

    const std::string& network() const noexcept { return network_; }

   private:
    NetworkShares* owner_ = nullptr;  ///< null: not counted
    std::string network_;
  };

  Share take(std::string network) { return {*this, std::move(network)}; }
  std::size_t of(const std::string& network) const {
    const auto found = counts_.find(network);
    return found == counts_.end() ? 0 : found->second;
  }
  /// The network that has most, and how much; empty when none has any.
  std::pair<std::string, std::size_t> most() const {
    std::pair<std::string, std::size_t> result;
    for (const auto& [network, count] : counts_)
      if (std::pair(count, network) > std::pair(result.second, result.first)) result = {network, count};
    return result;
  }

 private:
  std::unordered_map<std::string, std::size_t> counts_;
};

/// Of a list that has the oldest first: the oldest of the network that has most there. What floods a full list pushes out
/// itself.
template <class List, class NetworkOf>
typename List::iterator oldest_of_the_largest(List& list, NetworkOf network) {
  std::unordered_map<std::string, std::size_t> counts;
  std::size_t most = 0;
  for (const auto& one : list) most = std::max(most, ++counts[network(one)]);
  return std::find_if(list.begin(), list.end(), [&](const auto& one) { return counts[network(one)] == most; });
}

}  // namespace cohive::p2p
