/// \file
/// What goes wrong with a GPU. The detail of an Error has the words of the CUDA runtime, the number of the GPU, and the
/// kernel or copy that could not be started. What fails later is reported to whoever waits, who is told all that was
/// queued on the stream since the wait before; after a fault of one kernel everything else on the same GPU fails, too.
#pragma once

#include <system_error>

namespace cohive::cuda {

/// What may go wrong in the cuda module.
enum class Errc {
  no_device = 1,  ///< no GPU, no driver, or a driver too old for this build
  out_of_memory,  ///< of the device, or host memory that cannot be pinned
  failed,         ///< any other failure the CUDA runtime reports
};

/// Returns the category of these codes, which has their sentences.
const std::error_category& cuda_category() noexcept;
/// Makes a std::error_code of one of them, for the standard library.
inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), cuda_category()};
}

}  // namespace cohive::cuda

template <>
struct std::is_error_code_enum<cohive::cuda::Errc> : std::true_type {};
