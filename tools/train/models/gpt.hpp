// A causal transformer over bytes (GPT-2's block, pre-norm). Every text has the same 256 symbols, so that peers with
// different texts train the same model.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>

namespace cohive::tools {

struct GptOptions {
  std::int64_t layers = 2, width = 96, heads = 4, context = 64;
};

inline constexpr std::int64_t kByteValues = 256;

/// The options behind --size, by name; nullopt for an unknown one.
std::optional<GptOptions> gpt_preset(const std::string& name);
/// Names of the presets with what they stand for, for people.
std::string gpt_preset_help();

struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(const GptOptions& options);
  torch::Tensor forward(torch::Tensor x);
  std::int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(GptBlock);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptOptions& options);
  /// [batch, length] bytes as int64 to [batch, length, 256] logits.
  torch::Tensor forward(torch::Tensor bytes);
  torch::nn::Embedding symbols{nullptr}, positions{nullptr};
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace cohive::tools
