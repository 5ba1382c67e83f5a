// A transformer learns the next byte of a text; the end of the text is held out.
#include <algorithm>

#include "cohive/core/log.hpp"
#include "common/program.hpp"
#include "train/data/text.hpp"
#include "train/models/workloads.hpp"

namespace cohive::tools {
namespace {

constexpr std::uint64_t kHeldOutShare = 20;  // the last twentieth
constexpr std::int64_t kJudgedWindows = 64;  // of the held-out text at most
constexpr std::int64_t kWindowsPerPiece = 16;
constexpr std::uint64_t kLeastContexts = 8;  // of text

GptOptions gpt_options(const WorkloadOptions& o) {
  GptOptions gpt = *gpt_preset(o.size.value_or("tiny"));
  gpt.layers = o.layers.value_or(gpt.layers);
  gpt.width = o.width.value_or(gpt.width);
  gpt.heads = o.heads.value_or(gpt.heads);
  gpt.context = o.context.value_or(gpt.context);
  if (gpt.width % gpt.heads != 0)
    throw Exit{kBadInput, log::format("--heads: {} heads do not divide a width of {}", gpt.heads, gpt.width)};
  return gpt;
}

class TextWorkload final : public Workload {
 public:
  TextWorkload(const WorkloadOptions& options, const GptOptions& gpt)
      : path_(*options.text),
        gpt_(gpt),
        corpus_(path_, static_cast<std::uint64_t>(gpt.context) * kLeastContexts),
        model_(gpt) {
    const std::uint64_t least = static_cast<std::uint64_t>(gpt.context) + 1;
    const std::uint64_t held_out = std::max(corpus_.size() / kHeldOutShare, least);
    training_ = {&corpus_, 0, corpus_.size() - held_out};
    held_out_ = {&corpus_, training_.size, held_out};
    judged_ = spread_windows(held_out_, kJudgedWindows, gpt.context);
  }

  torch::nn::Module& model() override { return *model_; }

  torch::Tensor batch_loss(std::int64_t batch, std::mt19937_64& random) override {
    const auto windows = random_windows(training_, batch, gpt_.context, random);
    const auto logits = model_->forward(windows.inputs.to(device())).view({-1, kByteValues});
    return torch::nn::functional::cross_entropy(logits.to(torch::kFloat32), windows.targets.to(device()).view({-1}));
  }

  nlohmann::json description() override {
    return {{"model", log::format("gpt: {} layers, width {}, {} heads, context {}", gpt_.layers, gpt_.width, gpt_.heads,
                                  gpt_.context)},
            {"parameters", parameter_count()},
            {"data", log::format("{}: {} bytes to train on, {} held out", path_, training_.size, held_out_.size)},
            {"training_size", training_.size},
            {"held_out_size", held_out_.size}};
  }

 private:
  std::optional<Judged> judge(std::int64_t piece) override {
    const auto begin = piece * kWindowsPerPiece, end = std::min(begin + kWindowsPerPiece, judged_.inputs.size(0));
    if (begin >= end) return std::nullopt;
    return Judged{model_->forward(judged_.inputs.slice(0, begin, end).to(device())).view({-1, kByteValues}),
                  judged_.targets.slice(0, begin, end).reshape({-1}).to(device())};
  }

  std::string path_;
  GptOptions gpt_;
  Corpus corpus_;
  Text training_, held_out_;
  Windows judged_;
  Gpt model_;
};

}  // namespace

std::unique_ptr<Workload> make_text_workload(const WorkloadOptions& options) {
  if (!options.text) throw Exit{kBadInput, "--text is required: a text file, or a folder of them"};
  return std::make_unique<TextWorkload>(options, gpt_options(options));
}

}  // namespace cohive::tools
