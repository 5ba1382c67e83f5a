// A residual network learns the classes of images.
#include <algorithm>

#include "cohive/core/log.hpp"
#include "train/data/images.hpp"
#include "train/models/workloads.hpp"

namespace cohive::tools {
namespace {

constexpr std::int64_t kImagesPerPiece = 256;
constexpr std::uint64_t kDefaultSeed = 1;

torch::Tensor as_input(const torch::Tensor& images) {
  constexpr double kMean = 0.5, kDeviation = 0.25;
  return (images.to(torch::kFloat32) / 255.0 - kMean) / kDeviation;
}

class ImageWorkload final : public Workload {
 public:
  ImageWorkload(const CnnOptions& cnn, ImageData data)
      : cnn_(cnn), data_(std::move(data)), model_(cnn, data_.training.images.size(1), data_.classes) {}

  torch::nn::Module& model() override { return *model_; }

  torch::Tensor batch_loss(std::int64_t batch, std::mt19937_64& random) override {
    auto rows = torch::empty({batch}, torch::kInt64);
    std::uniform_int_distribution<std::int64_t> row(0, data_.training.labels.size(0) - 1);
    std::generate_n(rows.data_ptr<std::int64_t>(), batch, [&] { return row(random); });
    const auto logits = model_->forward(as_input(data_.training.images.index_select(0, rows).to(device())));
    return torch::nn::functional::cross_entropy(logits.to(torch::kFloat32),
                                                data_.training.labels.index_select(0, rows).to(device()));
  }

  nlohmann::json description() override {
    const auto& images = data_.training.images;
    const auto held_out = data_.held_out.labels.size(0);
    return {{"model", log::format("cnn: {} channels, {} blocks per stage, {} classes", cnn_.channels, cnn_.blocks,
                                  data_.classes)},
            {"parameters", parameter_count()},
            {"data", log::format("{}: {} images of {} x {} x {} to train on, {} held out", data_.description,
                                 images.size(0), images.size(1), images.size(2), images.size(3), held_out)},
            {"training_size", images.size(0)},
            {"held_out_size", held_out}};
  }

 private:
  std::optional<Judged> judge(std::int64_t piece) override {
    const auto& [images, labels] = data_.held_out;
    const auto begin = piece * kImagesPerPiece, end = std::min(begin + kImagesPerPiece, labels.size(0));
    if (begin >= end) return std::nullopt;
    return Judged{model_->forward(as_input(images.slice(0, begin, end).to(device()))),
                  labels.slice(0, begin, end).to(device())};
  }

  CnnOptions cnn_;
  ImageData data_;
  Cnn model_;
};

}  // namespace

std::unique_ptr<Workload> make_image_workload(const WorkloadOptions& options) {
  CnnOptions cnn;
  cnn.channels = options.channels.value_or(cnn.channels);
  cnn.blocks = options.blocks.value_or(cnn.blocks);
  const std::string data = options.data.value_or("generated");
  return std::make_unique<ImageWorkload>(
      cnn, data == "generated" ? generate_images(options.data_seed.value_or(kDefaultSeed)) : read_images(data));
}

}  // namespace cohive::tools
