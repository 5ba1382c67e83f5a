#include "failure.hpp"

#include <cuda_runtime_api.h>

#include <string>

#include "cohive/cuda/errors.hpp"

namespace cohive::cuda {
namespace {

class Category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "cuda"; }
  std::string message(int code) const override {
    switch (static_cast<Errc>(code)) {
      case Errc::no_device:
        return "no usable GPU";
      case Errc::out_of_memory:
        return "no memory left for the GPU";
      case Errc::failed:
        return "the GPU failed";
    }
    return "unknown GPU error";
  }
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

}  // namespace

const std::error_category& cuda_category() noexcept {
  static const Category category;
  return category;
}

Error failure(int status, const char* what) {
  return Error(code_of(status), std::string(what) + ": " + cudaGetErrorString(static_cast<cudaError_t>(status)));
}

Result<> checked(int status, const char* what) {
  if (status == cudaSuccess) return ok();
  cudaGetLastError();  // or the next launch would report this one again
  return failure(status, what);
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
