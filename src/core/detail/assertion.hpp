// Invariants: what holds whatever a peer sends and whatever a caller does. Where one does not hold, this code is wrong,
// and going on could damage a model or leak memory, so that the program ends. Assertions are always on: each costs a
// comparison and a branch that is not taken. What a peer or a caller can cause is an error instead, never an assertion.
#pragma once

#include <source_location>

namespace cohive::detail {

/// Says on stderr which invariant does not hold, and where, and aborts.
[[noreturn, gnu::cold]] void assertion_failed(const char* condition, std::source_location where);

}  // namespace cohive::detail

#define COHIVE_ASSERT(condition)                        \
  (__builtin_expect(static_cast<bool>(condition), true) \
       ? static_cast<void>(0)                           \
       : ::cohive::detail::assertion_failed(#condition, std::source_location::current()))
