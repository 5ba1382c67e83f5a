// Has the tests of LibTorch's trainers run with parameters on the emulated device. Its memory is the host's: LibTorch
// computes with it, and cohive steps and averages as on a GPU. Models whose optimizer is offloaded are linked to the
// host by its streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohive/cuda/backend.hpp"
#include "cuda/emulator/driver.hpp"
#include "cuda/torch/emulated_link.hpp"
#include "cuda/torch/emulated_products.hpp"
#include "torch/device_backend.hpp"

namespace cohive::libtorch {
namespace {

std::shared_ptr<train::Backend> make_emulated_backend(Runtime& runtime) {
  if (runtime.simulated()) return train::host_backend(runtime);
  return cuda::make_backend(runtime, {.products = cuda::emulated::make_products()}).value();
}

class OnEmulatedDevice : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override {
    cuda::emulated::set_delay(std::chrono::microseconds(200));
    backend_.emplace(&make_emulated_backend);
    link_.emplace(&cuda::emulated::make_waiting_link);
  }
  void OnTestEnd(const ::testing::TestInfo&) override {
    link_.reset();
    backend_.reset();
    EXPECT_THAT(cuda::emulated::take_findings(), ::testing::IsEmpty());
  }
  std::optional<HostBackendInUse> backend_;
  std::optional<HostLinkInUse> link_;
};

const bool kInstalled = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new OnEmulatedDevice);
  return true;
}();

}  // namespace
}  // namespace cohive::libtorch
