/// \file
/// Error codes of the checkpoint module. What the operating system reports is cohive::Errc::io.
#pragma once

#include <system_error>

namespace cohive::checkpoint {

/// What may go wrong in the checkpoint module.
enum class Errc {
  not_safetensors = 1,  ///< breaks a rule of the format
  damaged,              ///< cut short, or its bytes are not those that were written
  does_not_fit,         ///< tensors of another model
  other_run,            ///< of a run with another name
  not_empty,            ///< the folder holds checkpoints that nothing was said about
  in_use,               ///< the folder belongs to another process
  nothing_to_save,      ///< the state could not be copied in time
  newer_version,        ///< of a cohive that writes them in another way
};

/// Returns the category of these codes, which has their sentences.
const std::error_category& checkpoint_category() noexcept;
/// Makes a std::error_code of one of them, for the standard library.
inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), checkpoint_category()};
}

}  // namespace cohive::checkpoint

template <>
struct std::is_error_code_enum<cohive::checkpoint::Errc> : std::true_type {};
