// What the tests of cohive::cuda share: a GPU, if there is one, and vectors that travel there and back.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "cohive/cuda/device.hpp"
#ifdef COHIVE_CUDA_EMULATED
#include "cuda/emulator/emulator.hpp"
#endif

namespace cohive::cuda {

/// Tests on a device; skipped where there is none.
class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (auto count = device_count(); !count) GTEST_SKIP() << count.error();
    stream_.emplace(Stream::create().value());
  }
#ifdef COHIVE_CUDA_EMULATED
  void TearDown() override { EXPECT_THAT(emulated::take_findings(), ::testing::IsEmpty()); }
#endif
  Stream& stream() { return *stream_; }

  template <class T>
  DeviceBuffer to_device(const std::vector<T>& values) {
    auto buffer = DeviceBuffer::create(values.size() * sizeof(T)).value();
    stream()
        .upload_async({reinterpret_cast<const std::uint8_t*>(values.data()), buffer.size()}, buffer.bytes().data())
        .value();
    stream().synchronize().value();
    return buffer;
  }

  template <class T>
  std::vector<T> to_host(const DeviceBuffer& buffer) {
    std::vector<T> values(buffer.size() / sizeof(T));
    stream()
        .download_async(buffer.bytes().data(), {reinterpret_cast<std::uint8_t*>(values.data()), buffer.size()})
        .value();
    stream().synchronize().value();
    return values;
  }

 private:
  std::optional<Stream> stream_;
};

}  // namespace cohive::cuda
