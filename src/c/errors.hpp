// What C functions return, and the sentence that goes with it.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "cohive/cohive.h"
#include "cohive/core/result.hpp"
#include "fork.hpp"

namespace cohive::c {

/// The code of cohive.h for an error of any module.
std::int32_t code_of(const Error& error) noexcept;
/// Keeps the sentence for cohive_last_error() of this thread, and returns the code.
std::int32_t fail(std::int32_t code, std::string sentence) noexcept;
/// The code and the sentence of the exception that is being handled.
std::int32_t fail_by_exception() noexcept;

/// Throws what becomes COHIVE_INVALID_ARGUMENT with this sentence.
[[noreturn]] void refuse(std::string sentence);
/// Refuses null. \param name  of the parameter
template <class T>
T& there(T* pointer, const char* name) {
  if (!pointer) refuse(std::string(name) + " must not be null");
  return *pointer;
}

/// Runs the body of a C function, out of which no exception comes. The body returns nothing, or a code.
template <class F>
std::int32_t guarded(F body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return COHIVE_OK;
    } else {
      return body();
    }
  } catch (...) {
    return fail_by_exception();
  }
}

/// The same with the object of a handle. Refuses null, and one of another process. \param name  of the parameter
template <class Handle, class F>
std::int32_t with_handle(Handle* handle, const char* name, F body) noexcept {
  return guarded([&] {
    if (there(handle, name).origin.elsewhere()) return fail_elsewhere(handle->origin);
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return static_cast<std::int32_t>(COHIVE_OK);
    } else {
      return body();
    }
  });
}

/// Copies bytes for the caller to free.
void give(cohive_bytes* out, std::string_view bytes);

}  // namespace cohive::c
