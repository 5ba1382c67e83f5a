#include "donors.hpp"

#include <algorithm>
#include <cmath>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"

namespace cohive::averaging {
namespace {

constexpr int kPasses = 3;           // over the donors declared at the time
constexpr Duration kPassPause = 2s;  // a donor that lost its connection may be back
constexpr std::size_t kMaxDonors = 64;

struct Donor {
  double priority;
  double tie;
  PeerId peer;
};

Task<std::vector<Donor>> declared_donors(Dht& dht, std::string key) {
  std::vector<Donor> donors;
  auto declared = co_await dht.get(std::move(key), true);
  if (!declared) co_return donors;
  for (const auto& [subkey, entry] : declared->entries()) {
    const auto* bytes = subkey.get_if<msgpack::Bin>();
    const auto peer = bytes ? PeerId::from_bytes(as_bytes(bytes->data)) : std::nullopt;
    const auto priority = entry.value.as_number();
    if (peer && priority && std::isfinite(*priority) && *peer != dht.host().id())
      donors.push_back({*priority, dht.runtime().random_unit(), *peer});
  }
  std::sort(donors.begin(), donors.end(),
            [](const Donor& a, const Donor& b) { return std::pair(a.priority, a.tie) > std::pair(b.priority, b.tie); });
  if (donors.size() > kMaxDonors) donors.resize(kMaxDonors);
  co_return donors;
}

}  // namespace

Task<Result<DownloadedState>> download_from_donors(Dht& dht, DownloadSetup setup, Deadline deadline) {
  Runtime& runtime = dht.runtime();
  Error last(Errc::no_donor);
  PartialState partial;
  for (int pass = 0; pass < kPasses; ++pass) {
    if (pass > 0) co_await runtime.sleep_for(std::min(kPassPause, deadline.remaining(runtime.now())));
    const auto donors = co_await declared_donors(dht, setup.declared_under);
    for (const auto& donor : donors) {
      if (runtime.now() >= deadline.at()) co_return last;
      auto transfer =
          receive_state(dht.host(), donor.peer, setup.protocol, setup.chunk_timeout, setup.max_bytes, partial);
      auto state = co_await within(runtime, deadline, std::move(transfer), "state download");
      if (state) co_return state;
      log::info("averaging", "no state from {}: {}", donor.peer, state.error());
      last = state.error();
      // What a lost donor sent is worth keeping, what a lying one sent is not.
      const bool lied =
          last == cohive::Errc::malformed || last == cohive::Errc::limit_exceeded || last == Errc::bad_state;
      if (lied) partial = {};
    }
    if (donors.empty()) break;
  }
  co_return last;
}

}  // namespace cohive::averaging
