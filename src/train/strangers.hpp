// How many of those count that report in a run and that nobody knows.
#pragma once

#include <algorithm>
#include <cstddef>

namespace cohive::train {

inline constexpr std::size_t kFewStrangers = 4;  // that count beside anybody

/// Returns how many strangers count beside so many known trainers: as many as these. Anybody can report under any
/// number of keys.
template <class Number>
Number credible_strangers(Number strangers, Number known) {
  return std::min(strangers, std::max(known, Number{kFewStrangers}));
}

}  // namespace cohive::train
