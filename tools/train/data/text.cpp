#include "train/data/text.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "common/program.hpp"

namespace cohive::tools {

namespace {
constexpr std::uintmax_t kMaxText = std::uintmax_t{1} << 30;

void append_file(const std::filesystem::path& path, std::string& out) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Exit{kBadInput, "--text: cannot read " + path.string()};
  out.append(std::istreambuf_iterator<char>(file), {});
  if (out.size() > kMaxText) throw Exit{kBadInput, "--text: more than 1 GiB of text"};
}

Windows windows_at(std::string_view text, const std::vector<std::size_t>& starts, std::int64_t length) {
  const auto rows = static_cast<std::int64_t>(starts.size());
  Windows windows{torch::empty({rows, length}, torch::kInt64), torch::empty({rows, length}, torch::kInt64)};
  auto* input = windows.inputs.data_ptr<std::int64_t>();
  auto* target = windows.targets.data_ptr<std::int64_t>();
  for (const std::size_t start : starts) {
    const auto* from = reinterpret_cast<const std::uint8_t*>(text.data()) + start;
    input = std::copy_n(from, length, input);
    target = std::copy_n(from + 1, length, target);
  }
  return windows;
}
}  // namespace

std::string read_text(const std::string& path, std::size_t least) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::string text;
  if (fs::is_directory(path, error)) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied))
      if (entry.is_regular_file()) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) append_file(file, text);
  } else if (fs::is_regular_file(path, error)) {
    append_file(path, text);
  } else {
    throw Exit{kBadInput, "--text: no such file or folder: " + path};
  }
  if (text.size() < least)
    throw Exit{kBadInput, "--text: " + path + " holds only " + std::to_string(text.size()) + " bytes of text; " +
                              std::to_string(least) + " are needed"};
  return text;
}

Windows random_windows(std::string_view text, std::int64_t batch, std::int64_t length, std::mt19937_64& random) {
  std::uniform_int_distribution<std::size_t> start(0, text.size() - static_cast<std::size_t>(length) - 1);
  std::vector<std::size_t> starts(static_cast<std::size_t>(batch));
  std::ranges::generate(starts, [&] { return start(random); });
  return windows_at(text, starts, length);
}

Windows spread_windows(std::string_view text, std::int64_t most, std::int64_t length) {
  const std::size_t last = text.size() - static_cast<std::size_t>(length) - 1;
  const auto count = std::min(static_cast<std::size_t>(most), last / static_cast<std::size_t>(length) + 1);
  std::vector<std::size_t> starts(count);
  for (std::size_t i = 0; i < count; ++i) starts[i] = count == 1 ? 0 : last * i / (count - 1);
  return windows_at(text, starts, length);
}

}  // namespace cohive::tools
