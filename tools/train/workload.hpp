// Workload: what cohive-train trains, a model together with its data. One file and one line in make_workload add
// another.
#pragma once

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace cohive::tools {

/// As they were given: which of them a model knows is checked when it is made.
struct WorkloadOptions {
  std::string model = "gpt";
  std::string device = "cpu";
  std::optional<std::string> text, data, size;
  std::optional<std::int64_t> layers, width, heads, context;  ///< of gpt; unset: as the size has them
  std::optional<std::int64_t> channels, blocks;               ///< of cnn
  std::optional<std::uint64_t> data_seed;                     ///< of generated data
};

/// Adds --model and what belongs to the models.
void add_workload_options(CLI::App& app, WorkloadOptions& options);

/// Over the held-out part of the data.
struct Evaluation {
  double loss = 0, accuracy = 0;
  std::int64_t predictions = 0;  ///< that were judged: bytes or images
};

class Workload {
 public:
  virtual ~Workload() = default;

  virtual torch::nn::Module& model() = 0;
  /// Moves the model to a device, where it computes from now on; batches follow it.
  void move_to(torch::Device device);
  /// The mean loss over a random batch of the training part.
  virtual torch::Tensor batch_loss(std::int64_t batch, std::mt19937_64& random) = 0;
  /// What is trained on what: "model" and "data" are sentences, the rest are numbers.
  virtual nlohmann::json description() = 0;

  std::vector<torch::Tensor> parameters() { return model().parameters(); }
  /// The parameters of two dimensions or more, but for embeddings and the head: what Muon steps.
  std::vector<torch::Tensor> matrices();
  /// What a model learns besides its parameters: the running statistics of batch normalisation.
  std::vector<torch::Tensor> extra_tensors();
  /// Judges the model in evaluation mode.
  Evaluation evaluate();

 protected:
  /// Where the model is.
  torch::Device device() const { return device_; }
  /// Logits and targets of the held-out part, a piece at a time: [n, classes] and [n]. Nothing after the last.
  struct Judged {
    torch::Tensor logits, targets;
  };
  virtual std::optional<Judged> judge(std::int64_t piece) = 0;
  std::int64_t parameter_count();

 private:
  torch::Device device_ = torch::kCPU;
};

/// Reads the data and makes the model, with the same first parameters everywhere. Throws Exit with code 2.
std::unique_ptr<Workload> make_workload(const WorkloadOptions& options);

}  // namespace cohive::tools
