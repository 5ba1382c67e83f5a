// How often members are believed that have said something in vain before.
#pragma once

#include "core/detail/growing_pause.hpp"

namespace cohive::train {

using cohive::detail::GrowingPause;

/// Between times that members of a round are believed who say that this peer is behind, where it was in vain.
inline GrowingPause doubt_of_members() {
  return {5s, 15min};
}

}  // namespace cohive::train
