// A member of rounds that is no trainer, and tells the others whatever a test wants.
#pragma once

#include <algorithm>
#include <vector>

#include "cohive/averaging/averager.hpp"
#include "cohive/dht/dht.hpp"

namespace cohive::train {

/// What a false member does in each of its rounds.
struct FalseMember {
  averaging::AveragerOptions options;  ///< whose rounds
  std::size_t tensors = 1, values = 4;
  float value = 0;  ///< all that it sends
  msgpack::Value tells;
  double weight = 0;
};

/// Takes part in one round after another.
inline Task<void> take_part_falsely(Dht& dht, FalseMember how) {
  std::vector<std::vector<float>> values(how.tensors, std::vector<float>(how.values));
  std::vector<averaging::AveragedTensor> tensors;
  for (auto& tensor : values) tensors.push_back({tensor, {static_cast<std::uint32_t>(how.values)}});
  averaging::Averager averager(dht, std::move(tensors), how.options);
  averager.start();
  for (;;) {
    for (auto& tensor : values) std::ranges::fill(tensor, how.value);
    averaging::RoundOptions round;
    round.gather = how.tells;
    round.timeout = 10s;
    (void)co_await averager.step(std::move(round), how.weight);
  }
}

}  // namespace cohive::train
