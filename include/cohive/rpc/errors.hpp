/// \file
/// Error codes of the rpc module.
#pragma once

#include <system_error>

namespace cohive::rpc {

/// What may go wrong in the rpc module.
enum class Errc {
  handler_failed = 1,  ///< the callee's handler reported an error; its text is the detail
  call_cancelled,      ///< the callee closed without a reply
  frame_too_large,
  malformed_frame,
  message_after_end,
  busy,  ///< the callee has served this peer enough for now; asked again a little later, it will serve
};

/// Returns the category of these codes, which has their sentences.
const std::error_category& rpc_category() noexcept;
/// Makes a std::error_code of one of them, for the standard library.
inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), rpc_category()};
}

}  // namespace cohive::rpc

template <>
struct std::is_error_code_enum<cohive::rpc::Errc> : std::true_type {};
