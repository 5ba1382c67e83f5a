#include "train/device.hpp"

#include <charconv>
#include <optional>

#include "cohive/core/log.hpp"
#include "common/program.hpp"
#ifdef COHIVE_TRAIN_CUDA
#include "cohive/cuda/device.hpp"
#endif

namespace cohive::tools {
namespace {

/// Of "cuda:N".
std::optional<unsigned> gpu_number(const std::string& text) {
  constexpr std::string_view kPrefix = "cuda:";
  unsigned number = 0;
  const char* const end = text.data() + text.size();
  if (!text.starts_with(kPrefix) || text.size() == kPrefix.size()) return std::nullopt;
  const auto [stopped, error] = std::from_chars(text.data() + kPrefix.size(), end, number);
  return error == std::errc() && stopped == end && number < 128 ? std::optional(number) : std::nullopt;
}

}  // namespace

torch::Device device_from_text(const std::string& text) {
  if (text == "cpu") return torch::kCPU;
  const auto number = text == "cuda" ? std::optional<unsigned>(0) : gpu_number(text);
  if (!number) throw Exit{kBadInput, "--device: cpu, cuda or cuda:N, not '" + text + "'"};
#ifdef COHIVE_TRAIN_CUDA
  const auto devices = cuda::device_count();
  if (!devices) throw Exit{kBadInput, "--device " + text + ": " + devices.error().message()};
  if (*number >= static_cast<unsigned>(*devices))
    throw Exit{kBadInput, log::format("--device {}: this machine has {} GPUs, counted from 0", text, *devices)};
  return {torch::kCUDA, static_cast<torch::DeviceIndex>(*number)};
#else
  throw Exit{kBadInput,
             "--device " + text + ": this program is built without CUDA (cmake -DLIBTORCH_CUDA=ON, with nvcc)"};
#endif
}

}  // namespace cohive::tools
