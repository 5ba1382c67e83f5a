#include "train/text.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "common/program.hpp"

namespace cohive::tools {

namespace {
constexpr std::size_t kMaxSymbols = 128;
constexpr std::uintmax_t kMaxText = std::uintmax_t{1} << 30;

void append_file(const std::filesystem::path& path, std::string& out) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Exit{kBadInput, "--text: cannot read " + path.string()};
  out.append(std::istreambuf_iterator<char>(file), {});
  if (out.size() > kMaxText) throw Exit{kBadInput, "--text: more than 1 GiB of text"};
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
    throw Exit{kBadInput, "--text: " + path + " holds only " + std::to_string(text.size()) + " bytes of text"};
  return text;
}

Vocabulary::Vocabulary(const std::string& text) {
  std::pair<std::size_t, int> counts[256];
  for (int i = 0; i < 256; ++i) counts[i] = {0, i};
  for (char c : text) ++counts[static_cast<std::uint8_t>(c)].first;
  std::sort(std::begin(counts), std::end(counts), std::greater<>());
  std::fill(std::begin(symbols_), std::end(symbols_), 0);  // symbol 0: everything rare
  size_ = 1;
  for (std::size_t i = 0; i < kMaxSymbols - 1 && counts[i].first > 0; ++i) symbols_[counts[i].second] = size_++;
}

std::vector<std::int64_t> Vocabulary::encode(const std::string& text) const {
  std::vector<std::int64_t> result(text.size());
  std::transform(text.begin(), text.end(), result.begin(),
                 [this](char c) { return symbols_[static_cast<std::uint8_t>(c)]; });
  return result;
}

std::pair<torch::Tensor, torch::Tensor> random_batch(const std::vector<std::int64_t>& symbols, std::int64_t batch,
                                                     std::int64_t length, std::mt19937_64& random) {
  auto input = torch::empty({batch, length}, torch::kInt64), target = torch::empty({batch, length}, torch::kInt64);
  std::uniform_int_distribution<std::size_t> start(0, symbols.size() - static_cast<std::size_t>(length) - 1);
  for (std::int64_t row = 0; row < batch; ++row) {
    const auto* from = symbols.data() + start(random);
    std::copy_n(from, length, input.data_ptr<std::int64_t>() + row * length);
    std::copy_n(from + 1, length, target.data_ptr<std::int64_t>() + row * length);
  }
  return {input, target};
}

}  // namespace cohive::tools
