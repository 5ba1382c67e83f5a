#include "uploads.hpp"

#include "p2p/network_shares.hpp"

namespace cohive::averaging {
namespace {

// Four readers behind a link of a megabit a second have twice as much each.
constexpr double kLeastRate = 16 * 1024;
constexpr Duration kPaceWindow = 60s;

template <class Key>
void count_down(std::map<Key, std::size_t>& counts, const Key& key) {
  const auto at = counts.find(key);
  if (--at->second == 0) counts.erase(at);
}

template <class Key>
std::size_t count_of(const std::map<Key, std::size_t>& counts, const Key& key) {
  const auto at = counts.find(key);
  return at == counts.end() ? 0 : at->second;
}

}  // namespace

Uploads::Slot::Slot(Uploads& owner, PeerId peer, std::string network)
    : owner_(&owner), peer_(peer), network_(std::move(network)) {
  ++owner.taken_;
  ++owner.peers_[peer_];
  ++owner.networks_[network_];
}

Uploads::Slot::Slot(Slot&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)), peer_(other.peer_), network_(std::move(other.network_)) {}

Uploads::Slot::~Slot() {
  if (!owner_) return;
  --owner_->taken_;
  count_down(owner_->peers_, peer_);
  count_down(owner_->networks_, network_);
  owner_->changed_.notify_all();
}

bool Uploads::has_room(const PeerId& peer, const std::string& network) const {
  const bool trusted = network.empty();  // this machine
  return taken_ < slots_ && (trusted || (count_of(peers_, peer) == 0 && count_of(networks_, network) < (slots_ + 1) / 2));
}

Task<Uploads::Slot> Uploads::acquire(PeerId peer, Deadline deadline) {
  const auto address = host_.remote_address(peer);
  std::string network = address ? p2p::network_of(*address) : peer.binary();
  while (!has_room(peer, network))
    if (!co_await changed_.wait(deadline)) co_return Slot();
  co_return Slot(*this, peer, std::move(network));
}

bool ReaderPace::sent(std::size_t bytes) {
  bytes_ += bytes;
  const Duration passed = runtime_.now() - since_;
  if (passed < kPaceWindow) return true;
  const bool kept_up = static_cast<double>(bytes_) >= kLeastRate * to_seconds(passed);
  since_ = runtime_.now();
  bytes_ = 0;
  return kept_up;
}

}  // namespace cohive::averaging
