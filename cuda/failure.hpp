// From the CUDA runtime's codes to errors of ours.
#pragma once

#include "cohive/core/result.hpp"

namespace cohive::cuda {

/// \param status a cudaError_t that is not cudaSuccess
Error failure(int status, const char* what);
/// What a call returned.
Result<> checked(int status, const char* what);

/// Makes a device the current one of this thread, and afterwards the one that was: a thread's other users of CUDA, such
/// as a training framework, have their own idea of it.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  /// A cudaError_t.
  int status() const noexcept { return status_; }

 private:
  int before_ = -1;
  int status_;
};

}  // namespace cohive::cuda
