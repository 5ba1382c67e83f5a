/// \file
/// Error codes that every module shares. Modules add their own enums the same way.
#pragma once

#include <system_error>

namespace cohive {

/// What may go wrong everywhere.
enum class Errc {
  timeout = 1,       ///< a deadline passed
  cancelled,         ///< the owner gave up
  closed,            ///< the object was closed
  end_of_stream,     ///< the other side finished before the message was complete
  reset,             ///< the other side reset the stream or connection
  malformed,         ///< bytes that do not parse
  limit_exceeded,    ///< larger or more than allowed
  invalid_argument,  ///< bad configuration or user input
  io,                ///< the operating system reported a failure
  not_found,
  internal,  ///< a defect; never sent by a peer
  in_use,    ///< another process has it
};

/// Returns the category of these codes, which has their sentences.
const std::error_category& core_category() noexcept;
/// Makes a std::error_code of one of them, for the standard library.
inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), core_category()};
}

}  // namespace cohive

template <>
struct std::is_error_code_enum<cohive::Errc> : std::true_type {};
