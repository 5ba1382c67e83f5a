#include "group_bits.hpp"

#include <bit>
#include <cmath>
#include <unordered_set>

#include "cohive/core/crypto.hpp"

namespace cohive::averaging {

namespace {
constexpr std::size_t kN = 624, kM = 397;
}

PythonRandom::PythonRandom(ByteView seed) {
  // The seed is the big-endian integer of bytes || SHA-512(bytes), as little-endian 32-bit words without leading zeros.
  Bytes number = to_bytes(seed);
  const auto digest = crypto::sha512(seed);
  number.insert(number.end(), digest.begin(), digest.end());
  std::vector<std::uint32_t> key;
  for (std::size_t end = number.size(); end > 0;) {
    std::uint32_t word = 0;
    const std::size_t begin = end >= 4 ? end - 4 : 0;
    for (std::size_t i = begin; i < end; ++i) word = word << 8 | number[i];
    key.push_back(word);
    end = begin;
  }
  while (key.size() > 1 && key.back() == 0) key.pop_back();

  // init_by_array of the reference Mersenne Twister.
  state_[0] = 19650218;
  for (std::size_t i = 1; i < kN; ++i)
    state_[i] = 1812433253u * (state_[i - 1] ^ state_[i - 1] >> 30) + static_cast<std::uint32_t>(i);
  std::size_t i = 1, j = 0;
  for (std::size_t k = std::max(kN, key.size()); k > 0; --k) {
    state_[i] = (state_[i] ^ (state_[i - 1] ^ state_[i - 1] >> 30) * 1664525u) + key[j] + static_cast<std::uint32_t>(j);
    if (++i >= kN) state_[0] = state_[kN - 1], i = 1;
    if (++j >= key.size()) j = 0;
  }
  for (std::size_t k = kN - 1; k > 0; --k) {
    state_[i] = (state_[i] ^ (state_[i - 1] ^ state_[i - 1] >> 30) * 1566083941u) - static_cast<std::uint32_t>(i);
    if (++i >= kN) state_[0] = state_[kN - 1], i = 1;
  }
  state_[0] = 0x80000000;
}

void PythonRandom::twist() {
  for (std::size_t i = 0; i < kN; ++i) {
    const std::uint32_t y = (state_[i] & 0x80000000) | (state_[(i + 1) % kN] & 0x7fffffff);
    state_[i] = state_[(i + kM) % kN] ^ y >> 1 ^ (y & 1 ? 0x9908b0df : 0);
  }
  index_ = 0;
}

std::uint32_t PythonRandom::next() {
  if (index_ == kN) twist();
  std::uint32_t y = state_[index_++];
  y ^= y >> 11;
  y ^= y << 7 & 0x9d2c5680;
  y ^= y << 15 & 0xefc60000;
  return y ^ y >> 18;
}

std::uint32_t PythonRandom::below(std::uint32_t limit) {
  const int bits = std::bit_width(limit);
  for (;;) {
    const std::uint32_t value = next() >> (32 - bits);
    if (value < limit) return value;
  }
}

std::vector<std::uint32_t> PythonRandom::sample(std::uint32_t population, std::uint32_t count) {
  std::vector<std::uint32_t> result;
  std::size_t set_size = 21;
  if (count > 5) set_size += static_cast<std::size_t>(std::pow(4, std::ceil(std::log(count * 3) / std::log(4))));
  if (population <= set_size) {
    std::vector<std::uint32_t> pool(population);
    for (std::uint32_t i = 0; i < population; ++i) pool[i] = i;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t j = below(population - i);
      result.push_back(pool[j]);
      pool[j] = pool[population - i - 1];
    }
    return result;
  }
  std::unordered_set<std::uint32_t> taken;
  while (result.size() < count) {
    const std::uint32_t value = below(population);
    if (taken.insert(value).second) result.push_back(value);
  }
  return result;
}

std::string next_group_bits(const std::string& bits, ByteView group_id, std::size_t position, std::size_t group_size,
                            std::size_t target) {
  if (bits.empty()) return bits;
  const std::size_t buckets = target ? target : std::bit_ceil(group_size);
  if (group_size > buckets) return bits;
  const auto drawn = PythonRandom(group_id).sample(static_cast<std::uint32_t>(buckets),
                                                   static_cast<std::uint32_t>(group_size))[position];
  const auto width = static_cast<std::size_t>(std::bit_width(buckets - 1));
  std::string all = bits;
  for (std::size_t i = width; i-- > 0;) all.push_back(drawn >> i & 1 ? '1' : '0');
  return all.substr(all.size() - bits.size());
}

}  // namespace cohive::averaging
