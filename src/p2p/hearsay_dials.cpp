#include "hearsay_dials.hpp"

#include <algorithm>

#include "cohive/p2p/errors.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kMaxHearsay = 8192;
constexpr int kAtOnce = 2;  // dials of a host that has not answered yet
// A machine that is no peer gets the first few dials, and then one in a quarter of a minute from each host that is lied
// to.
constexpr double kHostTries = 4, kHostRefill = 1.0 / 15;
constexpr double kNetworkTries = 16, kNetworkRefill = 4.0 / 15;
// A node of a large swarm names many peers, of which half may just have gone; what protects a machine or a network is
// the bound of its own.
constexpr double kTellerTries = 128, kTellerRefill = 1;
constexpr double kWhenItAnswers = 8;  // times as many: many peers may be behind one address

// The first letter of a key says what it is.
constexpr char kHost = 'h', kNetwork = 'n', kTeller = 't';

}  // namespace

/// This machine is no network: there each port counts by itself.
std::vector<std::string> HearsayDials::keys_of(const KnownAddress& known) {
  const Networks networks = networks_of(known.address);
  std::vector<std::string> keys{kHost + (networks.empty() ? known.address.binary() : networks.subnet)};
  if (!networks.empty() && networks.block != networks.subnet) keys.push_back(kNetwork + networks.block);
  if (known.teller) keys.push_back(kTeller + known.teller->binary());
  return keys;
}

HearsayDials::Limit HearsayDials::limit_of(const std::string& key, const Tries& tries) const {
  Limit limit = key[0] == kHost      ? Limit{kHostTries, kHostRefill}
                : key[0] == kNetwork ? Limit{kNetworkTries, kNetworkRefill}
                                     : Limit{kTellerTries, kTellerRefill};
  if (!tries.answers || key[0] == kTeller) return limit;
  return {kWhenItAnswers * limit.most, kWhenItAnswers * limit.per_second};
}

double HearsayDials::level(const std::string& key) const {
  const auto found = tries_.find(key);
  if (found == tries_.end()) return 1;
  const Limit limit = limit_of(key, found->second);
  return found->second.left.level_at(runtime_.now(), limit.per_second, limit.most);
}

HearsayDials::Tries& HearsayDials::at(const std::string& key) {
  auto [found, is_new] = tries_.try_emplace(key);
  Tries& tries = found->second;
  if (is_new) {
    tries.place = order_.insert(order_.end(), key);
  } else {
    order_.splice(order_.end(), order_, tries.place);
  }
  while (order_.size() > kMaxHearsay && order_.front() != key) {
    const auto oldest = tries_.find(order_.front());
    if (oldest->second.running > 0) {  // so many dials are never under way
      order_.splice(order_.end(), order_, order_.begin());
      continue;
    }
    tries_.erase(oldest);
    order_.pop_front();
  }
  const Limit limit = limit_of(key, tries);
  tries.left.fill(runtime_.now(), limit.per_second, limit.most);
  return tries;
}

/// A dial that is under way may give its try back: a node of a large swarm names many peers that are all there.
bool HearsayDials::refuses(const KnownAddress& known) const {
  if (known.source != KnownAddress::Source::announced || known.address.is_circuit()) return false;
  return std::ranges::any_of(keys_of(known),
                             [this](const std::string& key) { return level(key) < 1 && tries_.at(key).running == 0; });
}

Task<Result<HearsayDials::Dial>> HearsayDials::begin(PeerId peer, KnownAddress known, Deadline deadline) {
  if (known.source != KnownAddress::Source::announced || known.address.is_circuit()) co_return Dial();
  const auto keys = keys_of(known);
  for (;;) {
    if (refuses(known)) co_return Error(Errc::dial_backoff, peer, known.address.text());
    const bool spent = std::ranges::any_of(keys, [this](const std::string& key) { return level(key) < 1; });
    const Tries& host = at(keys.front());
    if (!spent && (host.answers || host.running < kAtOnce)) break;
    if (!co_await changed_.wait(deadline)) co_return Error(Errc::dial_backoff, peer, known.address.text());
  }
  for (const auto& key : keys) {
    Tries& tries = at(key);
    --tries.left.level;
    ++tries.running;
  }
  co_return Dial(*this, std::move(known));
}

HearsayDials::Dial::~Dial() {
  if (!owner_) return;
  for (const auto& key : keys_of(known_)) --owner_->at(key).running;
  owner_->changed_.notify_all();
}

/// Hosts and networks have more tries from now on, and all of them at once.
void HearsayDials::Dial::answered() {
  if (!owner_) return;
  for (const auto& key : keys_of(known_)) {
    Tries& tries = owner_->at(key);
    ++tries.left.level;
    if (key[0] == kTeller || std::exchange(tries.answers, true)) continue;
    tries.left.level = owner_->limit_of(key, tries).most;
  }
}

}  // namespace cohive::p2p
