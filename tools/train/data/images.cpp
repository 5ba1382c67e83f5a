#include "train/data/images.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <vector>

#include "cohive/core/log.hpp"
#include "common/program.hpp"
#include "train/data/corpus.hpp"

namespace cohive::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxBytes = std::uintmax_t{1} << 31;  // of one file
constexpr std::int64_t kLeastSide = 8, kMostSide = 512, kMostChannels = 16;
constexpr std::int64_t kLeastClasses = 10;  // peers that lack a class still have the same model

/// Also a link that leads nowhere: reading it says why.
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

[[noreturn]] void refuse(const fs::path& path, const std::string& why) {
  throw Exit{kBadInput, "--data: " + path.string() + ": " + why};
}

std::vector<std::uint8_t> read_bytes(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) refuse(path, error.message());
  if (size > kMaxBytes) refuse(path, "more than 2 GiB");
  std::vector<std::uint8_t> bytes(size);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size)))
    refuse(path, "cannot be read");
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto found = compression_of(all.substr(0, kCompressionHead));
  if (!found.name.empty()) refuse(path, log::format("is compressed ({}); gunzip it first, or the like", found.name));
  return bytes;
}

torch::Tensor as_tensor(const std::uint8_t* from, const std::vector<std::int64_t>& sizes) {
  auto tensor = torch::empty(sizes, torch::kUInt8);
  std::copy_n(from, tensor.numel(), tensor.data_ptr<std::uint8_t>());
  return tensor;
}

torch::Tensor read_idx(const fs::path& path) {
  constexpr std::size_t kMostDimensions = 4, kMagic = 4;
  constexpr std::uint8_t kUnsignedBytes = 8;
  const auto bytes = read_bytes(path);
  if (bytes.size() < kMagic || bytes[0] != 0 || bytes[1] != 0) refuse(path, "is no IDX file");
  if (bytes[2] != kUnsignedBytes) refuse(path, "holds no unsigned bytes");
  const std::size_t dimensions = bytes[3], header = kMagic + 4 * dimensions;
  if (dimensions < 1 || dimensions > kMostDimensions || bytes.size() < header)
    refuse(path, "is no IDX file of one to four dimensions");
  std::vector<std::int64_t> sizes;
  std::uintmax_t values = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    const std::uint8_t* at = bytes.data() + kMagic + 4 * i;
    const std::uint32_t size =
        std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
    if (size == 0 || values > kMaxBytes / size) refuse(path, "has a dimension that cannot be");
    values *= size;
    sizes.push_back(size);
  }
  if (bytes.size() - header != values)
    refuse(path,
           "should hold " + std::to_string(values) + " values, and holds " + std::to_string(bytes.size() - header));
  return as_tensor(bytes.data() + header, sizes);
}

/// The file under one of the names that are in use for it: train-images-idx3-ubyte or train-images.idx3-ubyte.
fs::path idx_file(const fs::path& folder, const std::string& part, const std::string& what) {
  for (const std::string dimensions : {"1", "3", "4"})
    for (const char separator : {'-', '.'}) {
      const auto path = folder / (part + "-" + what + separator + "idx" + dimensions + "-ubyte");
      if (is_there(path)) return path;
    }
  return {};
}

ImageSet read_idx_set(const fs::path& images_path, const fs::path& labels_path) {
  auto images = read_idx(images_path);
  const auto labels = read_idx(labels_path);
  if (images.dim() == 3) images = images.unsqueeze(1);
  if (images.dim() != 4) refuse(images_path, "images have three or four dimensions");
  for (const std::int64_t side : {images.size(2), images.size(3)})
    if (side < kLeastSide || side > kMostSide) refuse(images_path, "images are 8 to 512 pixels high and wide");
  if (images.size(1) > kMostChannels) refuse(images_path, "images have at most 16 channels");
  if (labels.dim() != 1 || labels.size(0) != images.size(0))
    refuse(labels_path, "does not hold one label for each of the " + std::to_string(images.size(0)) + " images");
  return {images, labels.to(torch::kInt64)};
}

/// Without files for it, every tenth image is held out.
void hold_out(ImageData& data, const fs::path& path) {
  const auto all = torch::arange(data.training.images.size(0));
  if (all.size(0) < 20) refuse(path, "holds fewer than 20 images");
  const auto held = all.index({all.remainder(10) == 9}), kept = all.index({all.remainder(10) != 9});
  data.held_out = {data.training.images.index_select(0, held), data.training.labels.index_select(0, held)};
  data.training = {data.training.images.index_select(0, kept), data.training.labels.index_select(0, kept)};
}

ImageData read_idx_folder(const fs::path& folder) {
  ImageData data;
  const auto images = idx_file(folder, "train", "images"), labels = idx_file(folder, "train", "labels");
  if (labels.empty()) refuse(folder, "has no train-labels-idx1-ubyte");
  data.training = read_idx_set(images, labels);
  const auto test_images = idx_file(folder, "t10k", "images"), test_labels = idx_file(folder, "t10k", "labels");
  if (test_images.empty() != test_labels.empty()) refuse(folder, "has only one of the two t10k files");
  if (test_images.empty()) {
    hold_out(data, images);
  } else {
    data.held_out = read_idx_set(test_images, test_labels);
    if (data.held_out.images.sizes().slice(1) != data.training.images.sizes().slice(1))
      refuse(test_images, "holds images of another shape than " + images.string());
  }
  return data;
}

ImageSet read_cifar_file(const fs::path& path) {
  constexpr std::size_t kRecord = 1 + 3 * 32 * 32;
  const auto bytes = read_bytes(path);
  if (bytes.empty() || bytes.size() % kRecord != 0) refuse(path, "is no CIFAR-10 file: records have 3073 bytes");
  const auto records = as_tensor(bytes.data(), {static_cast<std::int64_t>(bytes.size() / kRecord), kRecord});
  auto labels = records.select(1, 0).to(torch::kInt64);
  if (labels.max().item<std::int64_t>() >= 10) refuse(path, "has a label above 9");
  return {records.slice(1, 1).reshape({-1, 3, 32, 32}), labels};
}

ImageData read_cifar_folder(const fs::path& folder) {
  std::vector<torch::Tensor> images, labels;
  for (int n = 1; n <= 5; ++n) {
    const auto path = folder / ("data_batch_" + std::to_string(n) + ".bin");
    if (n > 1 && !is_there(path)) continue;
    auto part = read_cifar_file(path);
    images.push_back(std::move(part.images));
    labels.push_back(std::move(part.labels));
  }
  ImageData data;
  data.training = {torch::cat(images), torch::cat(labels)};
  if (const auto test = folder / "test_batch.bin"; is_there(test)) {
    data.held_out = read_cifar_file(test);
  } else {
    hold_out(data, folder);
  }
  return data;
}

ImageSet noisy(const torch::Tensor& patterns, std::int64_t count, torch::Generator& generator) {
  constexpr double kGrey = 128, kContrast = 32, kNoise = 1.5;
  const auto labels = torch::arange(count).remainder(patterns.size(0));
  const auto clean = patterns.index_select(0, labels);
  const auto values = clean + kNoise * torch::randn(clean.sizes(), generator);
  return {(kGrey + kContrast * values).clamp(0, 255).to(torch::kUInt8), labels};
}

}  // namespace

ImageData read_images(const std::string& path) {
  const fs::path folder(path);
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw Exit{kBadInput, "--data: no such folder: " + path};
  ImageData data;
  if (!idx_file(folder, "train", "images").empty()) {
    data = read_idx_folder(folder);
  } else if (is_there(folder / "data_batch_1.bin")) {
    data = read_cifar_folder(folder);
  } else {
    refuse(folder, is_there(folder / "train-images-idx3-ubyte.gz")
                       ? "its files are compressed; gunzip them first"
                       : "has neither train-images-idx3-ubyte nor data_batch_1.bin");
  }
  const auto largest =
      std::max(data.training.labels.max().item<std::int64_t>(), data.held_out.labels.max().item<std::int64_t>());
  data.classes = std::max(kLeastClasses, largest + 1);
  data.description = path;
  return data;
}

ImageData generate_images(std::uint64_t seed) {
  constexpr std::int64_t kClasses = 10, kSide = 16, kCoarse = 4, kTraining = 8000, kHeldOut = 1000;
  auto generator = at::detail::createCPUGenerator(seed);
  namespace F = torch::nn::functional;
  const auto coarse = torch::randn({kClasses, 1, kCoarse, kCoarse}, generator);
  const auto patterns = F::interpolate(coarse, F::InterpolateFuncOptions()
                                                   .size(std::vector<std::int64_t>{kSide, kSide})
                                                   .mode(torch::kBilinear)
                                                   .align_corners(false));
  ImageData data;
  data.training = noisy(patterns, kTraining, generator);
  data.held_out = noisy(patterns, kHeldOut, generator);
  data.classes = kClasses;
  data.description = "generated from seed " + std::to_string(seed);
  return data;
}

}  // namespace cohive::tools
