#include "train/data/text.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <vector>

namespace cohive::tools {

namespace {
Windows windows_at(const Text& text, const std::vector<std::uint64_t>& starts, std::int64_t length) {
  const auto rows = static_cast<std::int64_t>(starts.size());
  Windows windows{torch::empty({rows, length}, torch::kInt64), torch::empty({rows, length}, torch::kInt64)};
  auto* input = windows.inputs.data_ptr<std::int64_t>();
  auto* target = windows.targets.data_ptr<std::int64_t>();
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(length) + 1);
  for (const std::uint64_t start : starts) {
    text.corpus->read(text.begin + start, bytes);
    input = std::copy_n(bytes.data(), length, input);
    target = std::copy_n(bytes.data() + 1, length, target);
  }
  return windows;
}
}  // namespace

Windows random_windows(const Text& text, std::int64_t batch, std::int64_t length, std::mt19937_64& random) {
  std::uniform_int_distribution<std::uint64_t> start(0, text.size - static_cast<std::uint64_t>(length) - 1);
  std::vector<std::uint64_t> starts(static_cast<std::size_t>(batch));
  std::ranges::generate(starts, [&] { return start(random); });
  return windows_at(text, starts, length);
}

Windows spread_windows(const Text& text, std::int64_t most, std::int64_t length) {
  const std::uint64_t last = text.size - static_cast<std::uint64_t>(length) - 1;
  const auto count = std::min(static_cast<std::uint64_t>(most), last / static_cast<std::uint64_t>(length) + 1);
  std::vector<std::uint64_t> starts(count);
  for (std::uint64_t i = 0; i < count; ++i) starts[i] = count == 1 ? 0 : last * i / (count - 1);
  return windows_at(text, starts, length);
}

}  // namespace cohive::tools
