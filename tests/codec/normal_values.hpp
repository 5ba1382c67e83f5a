// Random values as gradients have them.
#pragma once

#include <random>
#include <vector>

namespace cohive::codec {

inline std::vector<float> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

}  // namespace cohive::codec
