// From the CUDA runtime's codes to errors of ours.
#pragma once

#include <string>
#include <string_view>

#include "cohive/core/result.hpp"
#include "cohive/cuda/device.hpp"
#include "launch.hpp"
#include "work_log.hpp"

namespace cohive::cuda {

/// \param status a cudaError_t that is not cudaSuccess
Error failure(int status, std::string_view what);
/// What a call returned.
Result<> checked(int status, std::string_view what);
/// The same of a call that is about one device, which the error names.
Result<> checked_on(int device, int status, std::string_view what);

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

/// Notes what this thread starts while it lives, for the sentences of errors.
class Starting {
 public:
  /// \param log  where it is noted as well; may be null
  explicit Starting(WorkLog* log) noexcept;
  ~Starting();
  Starting(const Starting&) = delete;
  /// "starting KERNEL", with the kernel or copy that came last.
  std::string last() const;

 private:
  friend void note_start(const char* name);
  WorkLog* const log_;
  const char* last_ = "work";
  Starting* const outer_;
};

/// Runs `launch` with a device as the current one. Gives what it returns, a cudaError_t.
template <class Launch>
Result<> on_device(int device, WorkLog* log, Launch launch) {
  const DeviceScope scope(device);
  if (auto set = checked_on(device, scope.status(), "choosing a device"); !set) return set;
  const Starting starting(log);
  const int status = launch();
  if (status == 0) return ok();  // cudaSuccess: no sentence is made of most launches
  return checked_on(device, status, starting.last());
}
/// The same on a stream of ours.
template <class Launch>
Result<> on(const Stream& stream, Launch launch) {
  return on_device(stream.device(), &stream.log(), [&] { return launch(stream.native()); });
}

}  // namespace cohive::cuda
