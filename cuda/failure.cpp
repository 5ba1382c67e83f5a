#include "failure.hpp"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "cohive/core/error_category.hpp"
#include "cohive/cuda/errors.hpp"

namespace cohive::cuda {
namespace {

constexpr ErrorSentence<Errc> kSentences[] = {
    {Errc::no_device, "no usable GPU"},
    {Errc::out_of_memory, "no memory left for the GPU"},
    {Errc::failed, "the GPU failed"},
};

Errc code_of(int status) {
  switch (status) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorInitializationError:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorDevicesUnavailable:
      return Errc::no_device;
    case cudaErrorMemoryAllocation:
      return Errc::out_of_memory;
    default:
      return Errc::failed;
  }
}

thread_local Starting* innermost = nullptr;

}  // namespace

const std::error_category& cuda_category() noexcept {
  static const ErrorCategory<kSentences> category("cuda");
  return category;
}

Error failure(int status, std::string_view what) {
  return Error(code_of(status), std::string(what) + ": " + cudaGetErrorString(static_cast<cudaError_t>(status)));
}

Result<> checked(int status, std::string_view what) {
  if (status == cudaSuccess) return ok();
  cudaGetLastError();  // or the next launch would report this one again
  return failure(status, what);
}

Result<> checked_on(int device, int status, std::string_view what) {
  if (status == cudaSuccess) return ok();
  return checked(status, std::string(what) + " on GPU " + std::to_string(device));
}

Starting::Starting(WorkLog* log) noexcept : log_(log), outer_(std::exchange(innermost, this)) {}

Starting::~Starting() {
  innermost = outer_;
}

std::string Starting::last() const {
  return std::string("starting ") + last_;
}

void note_start(const char* name) {
  if (!innermost) return;
  innermost->last_ = name;
  if (innermost->log_) innermost->log_->note(name);
}

DeviceScope::DeviceScope(int device) {
  status_ = cudaGetDevice(&before_);
  if (status_ == cudaSuccess && before_ != device) status_ = cudaSetDevice(device);
}

DeviceScope::~DeviceScope() {
  if (status_ != cudaSuccess) return;
  int now = before_;
  if (cudaGetDevice(&now) == cudaSuccess && now != before_) cudaSetDevice(before_);
}

}  // namespace cohive::cuda
