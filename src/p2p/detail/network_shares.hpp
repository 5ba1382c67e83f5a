// How much each network has of something scarce: an attacker has few networks and any number of identities.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cohive/core/memory_budget.hpp"

namespace cohive::p2p {

using cohive::network_of;
using cohive::networks_of;

using NetworkCounts = std::unordered_map<std::string, std::size_t>;

/// Returns the network that has most, and how much; empty when none has any.
inline std::pair<std::string, std::size_t> largest_of(const NetworkCounts& counts) {
  const auto largest = std::ranges::max_element(
      counts, {}, [](const auto& one) { return std::pair(one.second, std::string_view(one.first)); });
  if (largest == counts.end()) return {};
  return *largest;
}

class NetworkShares {
 public:
  /// One unit, counted for its network while it lives. Must not outlive the shares.
  class Share {
   public:
    Share() = default;
    Share(NetworkShares& owner, std::string network) : network_(std::move(network)) {
      if (network_.empty()) return;
      owner_ = &owner;
      owner_->grown(owner_->counts_[network_]++);
    }
    Share(Share&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), network_(std::move(other.network_)) {}
    Share& operator=(Share&&) = delete;
    ~Share() {
      if (!owner_) return;
      const auto found = owner_->counts_.find(network_);
      owner_->shrunk(--found->second);
      if (found->second == 0) owner_->counts_.erase(found);
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
  std::pair<std::string, std::size_t> most() const { return largest_of(counts_); }
  /// How much that is, without looking for it.
  std::size_t highest() const noexcept { return sizes_.size(); }

 private:
  /// A network that had so much has one unit more.
  void grown(std::size_t from) {
    if (sizes_.size() == from) sizes_.push_back(0);
    ++sizes_[from];
  }
  /// A network has one unit less, and so much now.
  void shrunk(std::size_t to) {
    if (--sizes_[to] == 0) sizes_.pop_back();
  }

  NetworkCounts counts_;
  std::vector<std::size_t> sizes_;  // how many networks have more than 0, 1, 2...
};

/// Whether a network that has so many places is a crowd beside a newcomer's, which has `own`: it has many, and several
/// times as many, and may have to give one up.
inline bool is_crowd(std::size_t count, std::size_t own) {
  constexpr std::size_t kMany = 8, kTimes = 4;
  return count >= std::max(kMany, kTimes * (own + 1));
}

/// The shares of blocks, and within them of subnets.
class NestedShares {
 public:
  static constexpr std::size_t kSubnetsOfABlock = 4;  ///< a block may have as much as so many of its subnets

  /// One unit, counted for its block and its subnet while it lives. Must not outlive the shares.
  struct Share {
    Share() = default;
    Share(NestedShares& owner, Networks of)
        : networks(std::move(of)),
          block(owner.blocks.take(networks.block)),
          subnet(owner.subnets.take(networks.subnet)) {}
    Networks networks;
    NetworkShares::Share block, subnet;
  };

  Share take(Networks networks) { return {*this, std::move(networks)}; }
  /// \param most  of one subnet
  bool has_room(const Networks& networks, std::size_t most) const {
    return subnets.of(networks.subnet) < most && blocks.of(networks.block) < kSubnetsOfABlock * most;
  }

  NetworkShares blocks, subnets;
};

/// Of a list that has the oldest first: the oldest of the host that has most, in the subnet that has most, in the block
/// that has most there. What floods a full list pushes out itself, from however many addresses of its own it does so.
/// \param networks  returns the Networks of an element, by reference
template <class List, class NetworksOf>
typename List::iterator oldest_of_the_largest(List& list, NetworksOf networks) {
  static constexpr std::array kLevels = {&Networks::block, &Networks::subnet, &Networks::host};
  std::array<std::string_view, kLevels.size()> largest;
  std::size_t level = 0;
  const auto within = [&](const auto& one) {
    for (std::size_t i = 0; i < level; ++i)
      if (networks(one).*kLevels[i] != largest[i]) return false;
    return true;
  };
  for (; level < kLevels.size(); ++level) {
    std::unordered_map<std::string_view, std::size_t> counts;
    std::size_t most = 0;
    for (const auto& one : list)
      if (within(one)) most = std::max(most, ++counts[networks(one).*kLevels[level]]);
    const auto first = std::ranges::find_if(
        list, [&](const auto& one) { return within(one) && counts[networks(one).*kLevels[level]] == most; });
    if (first == list.end()) return first;
    largest[level] = networks(*first).*kLevels[level];
  }
  return std::ranges::find_if(list, within);
}

}  // namespace cohive::p2p
