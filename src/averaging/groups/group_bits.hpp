// Which group a peer looks for next: bits drawn from the group's id by CPython's random generator, so that all members
// spread as intended. Source: docs/wire/hivemind.md, section 6.5 and appendix B.4.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohive/core/bytes.hpp"

namespace cohive::averaging {

/// CPython's random.Random(bytes).
class PythonRandom {
 public:
  explicit PythonRandom(ByteView seed);
  std::uint32_t next();
  std::uint32_t below(std::uint32_t limit);
  /// random.sample(range(population), count); count <= population.
  std::vector<std::uint32_t> sample(std::uint32_t population, std::uint32_t count);

 private:
  void twist();
  std::uint32_t state_[624];
  std::size_t index_ = 624;
};

/// The bits after a round: `position` of `group_size` members, `target` as configured (0: next power of two).
std::string next_group_bits(const std::string& bits, ByteView group_id, std::size_t position, std::size_t group_size,
                            std::size_t target);

}  // namespace cohive::averaging
