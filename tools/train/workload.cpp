#include "train/workload.hpp"

#include "common/numbers.hpp"
#include "common/program.hpp"
#include "common/settings.hpp"
#include "train/models/workloads.hpp"

namespace cohive::tools {
namespace {

constexpr std::uint64_t kModelSeed = 42;  // every peer begins with the same parameters

struct ModelEntry {
  const char* name;
  std::unique_ptr<Workload> (*make)(const WorkloadOptions&);
};
constexpr ModelEntry kModels[] = {{"gpt", make_text_workload}, {"cnn", make_image_workload}};

/// A flag that the model would not look at is a mistake of the user.
void refuse_foreign_flags(const WorkloadOptions& o) {
  const auto refuse = [&o](const std::string& of, std::initializer_list<std::pair<const char*, bool>> flags) {
    for (const auto& [flag, given] : flags)
      if (given && o.model != of)
        throw Exit{kBadInput, std::string(flag) + " goes with --model " + of + ", not with --model " + o.model};
  };
  refuse("gpt", {{"--text", o.text.has_value()},
                 {"--size", o.size.has_value()},
                 {"--layers", o.layers.has_value()},
                 {"--width", o.width.has_value()},
                 {"--heads", o.heads.has_value()},
                 {"--context", o.context.has_value()}});
  refuse("cnn", {{"--data", o.data.has_value()},
                 {"--data-seed", o.data_seed.has_value()},
                 {"--channels", o.channels.has_value()},
                 {"--blocks", o.blocks.has_value()}});
}

}  // namespace

void add_workload_options(CLI::App& app, WorkloadOptions& o) {
  const OptionGroup group(app, "Model and data");
  std::vector<std::string> models;
  for (const auto& model : kModels) models.push_back(model.name);
  app.add_option("--model", o.model,
                 "gpt (a transformer over the bytes of a text) or cnn (a residual network over images); default gpt")
      ->check(CLI::IsMember(models));
  app.add_option(
      "--device", o.device,
      "where the model computes: cpu, cuda, or cuda:N, the GPU number N (default cpu; with several ranks cuda is "
      "the GPU of a rank's number)");
  app.add_option("--text", o.text, "of gpt: a text file, a folder of them, or a pipe as /dev/stdin");
  app.add_option("--size", o.size,
                 "of gpt: " + gpt_preset_help() +
                     " (default tiny); --layers, --width, --heads and --context change parts of it")
      ->check([](const std::string& name) {
        return gpt_preset(name) ? std::string() : "one of " + gpt_preset_help() + ", not '" + name + "'";
      });
  app.add_option("--layers", o.layers, "of gpt")->transform(whole(1, 64));
  app.add_option("--width", o.width, "of gpt")->transform(whole(8, 4096));
  app.add_option("--heads", o.heads, "of gpt; they divide the width")->transform(whole(1, 128));
  app.add_option("--context", o.context, "of gpt: bytes per sample")->transform(whole(8, 4096));
  app.add_option("--data", o.data,
                 "of cnn: a folder in the format of MNIST or of CIFAR-10 (binary), or 'generated' (the default)");
  app.add_option("--data-seed", o.data_seed, "of generated data; all peers need the same (default 1)")
      ->transform(whole());
  app.add_option("--channels", o.channels, "of cnn: in the first of its three stages (default 16)")
      ->transform(whole(1, 1024));
  app.add_option("--blocks", o.blocks, "of cnn: per stage (default 1)")->transform(whole(1, 64));
}

void Workload::move_to(torch::Device device) {
  device_ = device;
  model().to(device);
}

std::vector<torch::Tensor> Workload::matrices() {
  std::vector<torch::Tensor> matrices;
  for (const auto& module : model().named_modules("", /*include_self=*/false)) {
    if (module.key() == "head" || module.value()->as<torch::nn::Embedding>()) continue;
    for (const auto& parameter : module.value()->parameters(/*recurse=*/false))
      if (parameter.dim() >= 2) matrices.push_back(parameter);
  }
  return matrices;
}

std::vector<torch::Tensor> Workload::extra_tensors() {
  std::vector<torch::Tensor> tensors;
  for (const auto& buffer : model().buffers())
    if (buffer.is_floating_point()) tensors.push_back(buffer);
  return tensors;
}

Evaluation Workload::evaluate() {
  torch::NoGradGuard no_grad;
  model().eval();
  Evaluation result;
  double loss = 0, right = 0;
  for (std::int64_t piece = 0; const auto judged = judge(piece); ++piece) {
    loss +=
        torch::nn::functional::cross_entropy(judged->logits, judged->targets,
                                             torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
            .item<double>();
    right += judged->logits.argmax(1).eq(judged->targets).sum().item<double>();
    result.predictions += judged->targets.size(0);
  }
  model().train();
  result.loss = loss / static_cast<double>(result.predictions);
  result.accuracy = right / static_cast<double>(result.predictions);
  return result;
}

std::int64_t Workload::parameter_count() {
  std::int64_t count = 0;
  for (const auto& parameter : parameters()) count += parameter.numel();
  return count;
}

std::unique_ptr<Workload> make_workload(const WorkloadOptions& options) {
  refuse_foreign_flags(options);
  torch::manual_seed(kModelSeed);
  for (const auto& model : kModels)
    if (options.model == model.name) return model.make(options);
  throw Exit{kBadInput, "--model: there is no " + options.model};
}

}  // namespace cohive::tools
