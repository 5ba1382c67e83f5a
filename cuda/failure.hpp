// From the CUDA runtime's codes to errors of ours.
#pragma once

#include "cohive/core/result.hpp"
#include "cohive/cuda/device.hpp"

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

/// Runs `launch` with the stream's device as the current one. Gives what it returns, a cudaError_t.
template <class Launch>
Result<> on(const Stream& stream, Launch launch) {
  const DeviceScope scope(stream.device());
  if (auto set = checked(scope.status(), "choosing a device"); !set) return set;
  return checked(launch(stream.native()), "starting a kernel");
}

}  // namespace cohive::cuda
