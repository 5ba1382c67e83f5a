// Reports of trainers as monitors get them, for tests.
#pragma once

#include <cstring>
#include <string>

#include "cohive/core/keys.hpp"
#include "monitor/run_view.hpp"

namespace cohive::tools {

inline PeerId peer_number(std::uint32_t number) {
  Bytes seed(32, 0x5a);
  std::memcpy(seed.data(), &number, sizeof number);
  return KeyPair::ed25519_from_seed(seed).peer_id();
}

inline TrainerReport trainer_at(std::uint32_t number, std::uint64_t epoch, std::uint64_t samples = 100,
                                double rate = 10) {
  TrainerReport report;
  report.marker = "key " + std::to_string(number);
  report.peer = peer_number(number);
  report.epoch = epoch;
  report.samples = samples;
  report.samples_per_second = rate;
  report.age = 1;
  return report;
}

}  // namespace cohive::tools
