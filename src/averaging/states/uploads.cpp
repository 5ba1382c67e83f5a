#include "uploads.hpp"

#include "p2p/detail/peer_account.hpp"

namespace cohive::averaging {
namespace {

// Four readers behind a link of a megabit a second have twice as much each.
constexpr double kLeastRate = 16 * 1024;
constexpr Duration kPaceWindow = 60s;

}  // namespace

Uploads::Slot::Slot(Uploads& owner, const PeerId& peer, std::string network)
    : owner_(&owner), peer_(owner.peers_.take(peer.binary())), network_(owner.networks_.take(std::move(network))) {
  ++owner.taken_;
}

Uploads::Slot::Slot(Slot&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      peer_(std::move(other.peer_)),
      network_(std::move(other.network_)) {}

Uploads::Slot::~Slot() {
  if (!owner_) return;
  --owner_->taken_;
  owner_->changed_.notify_all();
}

bool Uploads::has_room(const PeerId& peer, const std::string& network) const {
  const bool trusted = network.empty();  // this machine
  return taken_ < slots_ && (trusted || (peers_.of(peer.binary()) == 0 && networks_.of(network) < (slots_ + 1) / 2));
}

Task<Uploads::Slot> Uploads::acquire(PeerId peer, Deadline deadline) {
  std::string network = p2p::network_of_peer(host_, peer);
  while (!has_room(peer, network))
    if (!co_await changed_.wait(deadline)) co_return Slot();
  co_return Slot(*this, peer, std::move(network));
}

bool holds_too_long(Runtime& runtime, const StateReader* reader) {
  const auto settled = reader ? reader->tensors()->settled_at() : std::nullopt;
  return settled && runtime.now() - *settled > kKeptTime;
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
