#include "checksum.hpp"

#include <algorithm>
#include <cstring>

namespace cohive::train {

std::uint64_t checksum_of(const std::vector<std::vector<float>>& values) {
  constexpr std::uint64_t kPrime = 0x100000001b3, kBasis = 0xcbf29ce484222325;  // FNV-1a, over words
  std::uint64_t sum = kBasis;
  for (const auto& one : values) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(one.data());
    const std::size_t size = one.size() * sizeof(float);
    for (std::size_t at = 0; at < size; at += sizeof sum) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + at, std::min(sizeof word, size - at));
      sum = (sum ^ word) * kPrime;
      sum ^= sum >> 32;  // the high bits of a word move only high bits
    }
  }
  return sum == 0 ? 1 : sum;
}

}  // namespace cohive::train
