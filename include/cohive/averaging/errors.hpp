/// \file
/// Error codes of the averaging module.
#pragma once

#include <system_error>

namespace cohive::averaging {

/// What may go wrong in the averaging module.
enum class Errc {
  no_group = 1,    ///< matchmaking found no group in time
  nobody_reduces,  ///< every member is a client
  bad_partition,   ///< the members' parts do not fit together
  no_donor,        ///< no peer shares its state
  bad_state,       ///< a donor's state does not fit
  narrow_path,     ///< the relay between us and a donor carries less than its state
  round_cancelled,
  refused,        ///< a member of the group refused to average our parts
  not_finite,     ///< a part holds NaN or infinity
  members_left,   ///< all members that were expected have said that they average no more
  left,           ///< this peer has left and averages no more
  wrong_average,  ///< a reducer answered what its contributions do not make
  slow_reader,    ///< a client reads a state more slowly than it may
  state_changed,  ///< a state is not what it was when its download began
};

/// Returns the category of these codes, which has their sentences.
const std::error_category& averaging_category() noexcept;
/// Makes a std::error_code of one of them, for the standard library.
inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), averaging_category()};
}

}  // namespace cohive::averaging

template <>
struct std::is_error_code_enum<cohive::averaging::Errc> : std::true_type {};
