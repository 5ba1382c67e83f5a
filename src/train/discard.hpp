// Freeing much memory takes its time, a millisecond for ten megabytes or so: not on the loop.
#pragma once

#include <memory>
#include <utility>

#include "cohive/core/runtime.hpp"

namespace cohive::train {

/// Destroys `object` on the pool.
template <class T>
Task<void> discard(Runtime& runtime, T object) {
  auto owned = std::make_shared<T>(std::move(object));
  co_await runtime.offload([owned = std::move(owned)]() mutable {
    owned.reset();
    return true;
  });
}

}  // namespace cohive::train
