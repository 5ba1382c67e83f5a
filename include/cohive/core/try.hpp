/// \file
/// TRY and CO_TRY: go on with a result's value, or return its error to the caller.
///
///   TRY(auto address, Multiaddr::from_text(text));                    // in a function that returns a Result
///   CO_TRY(auto stream, co_await host.open_stream(peer, name, end));  // in a coroutine that does
///   CO_TRY(co_await stream->write(bytes, end));                       // when there is no value, or none of interest
///
/// The first form is a declaration; it takes two lines of its own, so not as the body of an `if` without braces. The
/// error keeps its peer and context. Macros know no namespaces: include this header in source files only.
#pragma once

#include <utility>

#include "cohive/core/result.hpp"

/// Goes on with a result's value, or returns its error from a function.
#define TRY(first, ...) COHIVE_TRY_##__VA_OPT__(VALUE)(return, COHIVE_TRY_NAME, first __VA_OPT__(, ) __VA_ARGS__)
/// Goes on with a result's value, or returns its error from a coroutine.
#define CO_TRY(first, ...) COHIVE_TRY_##__VA_OPT__(VALUE)(co_return, COHIVE_TRY_NAME, first __VA_OPT__(, ) __VA_ARGS__)

/// \cond what the two are made of
#define COHIVE_TRY_NAME COHIVE_TRY_JOIN(cohive_try_, __COUNTER__)
#define COHIVE_TRY_JOIN(a, b) COHIVE_TRY_JOIN_(a, b)
#define COHIVE_TRY_JOIN_(a, b) a##b
#define COHIVE_TRY_(leave, name, expression) COHIVE_TRY_CHECK(leave, name, expression)
#define COHIVE_TRY_CHECK(leave, name, expression)            \
  do {                                                       \
    if (auto&& name = expression; !name) leave name.error(); \
  } while (false)
#define COHIVE_TRY_VALUE(leave, name, declaration, ...) COHIVE_TRY_DECLARE(leave, name, declaration, __VA_ARGS__)
#define COHIVE_TRY_DECLARE(leave, name, declaration, ...) \
  auto&& name = __VA_ARGS__;                              \
  if (!name) leave name.error();                          \
  declaration = *std::forward<decltype(name)>(name)
/// \endcond
