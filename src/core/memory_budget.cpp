#include "cohive/core/memory_budget.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

namespace cohive {
namespace {

constexpr std::size_t kLeastBudget = std::size_t{128} << 20;
constexpr std::size_t kBudgetShare = 8;  // of the machine's memory, one part in so many
constexpr std::size_t kReserve = 8;      // of the budget, one part in so many: for accounts that hold less than others
constexpr std::size_t kFairShare =
    32;  // of the budget, one part in so many: what a network may have queued in any case

/// What a container is allowed; the largest number when there is no limit, or no file that says so.
std::size_t limit_in(const char* path) {
  std::ifstream file(path);
  std::size_t limit = 0;
  return file >> limit ? limit : std::numeric_limits<std::size_t>::max();
}

}  // namespace

std::size_t default_memory_budget() {
  const auto pages = static_cast<std::size_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const auto page = static_cast<std::size_t>(std::max(0L, ::sysconf(_SC_PAGESIZE)));
  const std::size_t allowed = std::min(
      {pages * page, limit_in("/sys/fs/cgroup/memory.max"), limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes")});
  return std::max(kLeastBudget, allowed / kBudgetShare);
}

std::shared_ptr<const MemoryBudget::Account> MemoryBudget::account(const PeerId& peer, const Multiaddr& remote) const {
  std::string network = network_of(remote);
  if (network.empty()) network = "peer " + peer.binary();  // of this machine: each by itself
  return std::shared_ptr<const Account>(new Account(state_, peer, std::move(network)));
}

bool MemoryBudget::Account::add(std::size_t bytes) const {
  if (!state_ || bytes == 0) return true;  // what holds nothing leaves no entry, which nothing would remove
  State& state = *state_;
  if (state.held + bytes > state.total - state.total / kReserve) {
    const auto own = state.networks.find(network_);
    const std::size_t ours = bytes + (own == state.networks.end() ? 0 : own->second.bytes);
    const auto largest = std::ranges::max_element(state.networks, {}, [](const auto& one) { return one.second.bytes; });
    const bool is_largest = largest == state.networks.end() || ours >= largest->second.bytes;
    if (!is_largest) cut_largest(largest->first);
    if (is_largest || state.held + bytes > state.total) {
      ++state.refused;
      return false;
    }
  }
  state.held += bytes;
  state.highest = std::max(state.highest, state.held);
  Network& network = state.networks[network_];
  network.bytes += bytes;
  network.peers[peer_] += bytes;
  return true;
}

bool MemoryBudget::Account::has_spare(std::size_t bytes) const {
  if (!state_ || state_->held + bytes <= state_->total / 2) return true;
  const auto own = state_->networks.find(network_);
  return bytes + (own == state_->networks.end() ? 0 : own->second.bytes) <= state_->total / kFairShare;
}

void MemoryBudget::Account::remove(std::size_t bytes) const {
  if (!state_ || bytes == 0) return;
  state_->held -= bytes;
  const auto network = state_->networks.find(network_);
  const auto peer = network->second.peers.find(peer_);
  if ((peer->second -= bytes) == 0) network->second.peers.erase(peer);
  if ((network->second.bytes -= bytes) == 0) state_->networks.erase(network);
}

void MemoryBudget::Account::cut_largest(const std::string& network) const {
  const auto& peers = state_->networks.at(network).peers;
  const PeerId greediest = std::ranges::max_element(peers, {}, [](const auto& one) { return one.second; })->first;
  ++state_->cut_off;
  if (state_->cut) state_->cut(greediest);
}

bool MemoryBudget::Charge::add(std::size_t bytes) {
  if (account_ && !account_->add(bytes)) return false;
  if (account_) bytes_ += bytes;
  return true;
}

void MemoryBudget::Charge::subtract(std::size_t bytes) {
  const std::size_t less = std::min(bytes, bytes_);
  if (account_) account_->remove(less);
  bytes_ -= less;
}

}  // namespace cohive
