// Our steps beside LibTorch's optimizers.
#include <torch/torch.h>

#include "optim/optimized.hpp"
#include "optim/reference.hpp"

namespace cohive::optim {
namespace {

using Made = std::unique_ptr<torch::optim::Optimizer>;

Made make(const SgdOptions& o, std::vector<torch::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(o.lr)
                                                             .momentum(o.momentum)
                                                             .dampening(o.dampening)
                                                             .weight_decay(o.weight_decay)
                                                             .nesterov(o.nesterov));
}
template <class Theirs, class TheirOptions, class O>
Made make_adam(const O& o, std::vector<torch::Tensor> parameters) {
  return std::make_unique<Theirs>(
      parameters,
      TheirOptions(o.lr).betas({o.beta1, o.beta2}).eps(o.eps).weight_decay(o.weight_decay).amsgrad(o.amsgrad));
}
Made make(const AdamOptions& o, std::vector<torch::Tensor> parameters) {
  return make_adam<torch::optim::Adam, torch::optim::AdamOptions>(o, std::move(parameters));
}
Made make(const AdamWOptions& o, std::vector<torch::Tensor> parameters) {
  return make_adam<torch::optim::AdamW, torch::optim::AdamWOptions>(o, std::move(parameters));
}
Made make(const RmspropOptions& o, std::vector<torch::Tensor> parameters) {
  return std::make_unique<torch::optim::RMSprop>(parameters, torch::optim::RMSpropOptions(o.lr)
                                                                 .alpha(o.alpha)
                                                                 .eps(o.eps)
                                                                 .weight_decay(o.weight_decay)
                                                                 .momentum(o.momentum)
                                                                 .centered(o.centered));
}
Made make(const AdagradOptions& o, std::vector<torch::Tensor> parameters) {
  return std::make_unique<torch::optim::Adagrad>(parameters, torch::optim::AdagradOptions(o.lr)
                                                                 .lr_decay(o.lr_decay)
                                                                 .weight_decay(o.weight_decay)
                                                                 .initial_accumulator_value(o.initial_accumulator_value)
                                                                 .eps(o.eps));
}
Made make(const LambOptions&, std::vector<torch::Tensor>) {
  return nullptr;
}

/// The statistics that LibTorch keeps, in our order.
std::vector<torch::Tensor> statistics(const torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  const auto& state = *optimizer.state().at(parameter.unsafeGetTensorImpl());
  std::vector<torch::Tensor> all;
  if (auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) all = {sgd->momentum_buffer()};
  if (auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(&state))
    all = {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()};
  if (auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state))
    all = {adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()};
  if (auto* rmsprop = dynamic_cast<const torch::optim::RMSpropParamState*>(&state))
    all = {rmsprop->square_avg(), rmsprop->momentum_buffer(), rmsprop->grad_avg()};
  if (auto* adagrad = dynamic_cast<const torch::optim::AdagradParamState*>(&state)) all = {adagrad->sum()};
  std::erase_if(all, [](const torch::Tensor& tensor) { return !tensor.defined(); });
  return all;
}

template <class T>
torch::Tensor view_of(std::vector<T>& values) {
  return torch::from_blob(values.data(), {static_cast<std::int64_t>(values.size())},
                          std::is_same_v<T, float> ? torch::kFloat32 : torch::kFloat64);
}

/// Relative to the largest value: how far two tensors differ.
template <class T>
double distance(std::vector<T> ours, const torch::Tensor& theirs) {
  return ((view_of(ours) - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).template item<double>();
}

constexpr std::size_t kCount = 1003;

/// Largest distance of parameters or statistics over 100 steps.
template <class T>
double distance_after_steps(const Options& options) {
  Optimized<T> ours(options, normal_values<T>(kCount, 1));
  auto copy = ours.parameters;
  const auto parameter = view_of(copy).clone().requires_grad_(true);
  const Made theirs = std::visit([&](const auto& o) { return make(o, {parameter}); }, options);
  double furthest = 0;
  for (std::int64_t step = 1; step <= 100; ++step) {
    auto gradient = normal_values<T>(kCount, static_cast<unsigned>(step + 10));
    parameter.mutable_grad() = view_of(gradient).clone();
    theirs->step();
    ours.step(gradient, {.step = step});
    furthest = std::max(furthest, distance(ours.parameters, parameter.detach()));
  }
  if (ours.state.empty()) return furthest;
  const auto states = statistics(*theirs, parameter);
  EXPECT_EQ(states.size(), ours.state.size());
  for (std::size_t i = 0; i < states.size(); ++i) furthest = std::max(furthest, distance(ours.state[i], states[i]));
  return furthest;
}

TEST(Optimizers, StepAsLibTorchDoesToRounding) {
  for (const Options& options : all_options()) {
    if (std::holds_alternative<LambOptions>(options)) continue;  // LibTorch has none
    SCOPED_TRACE(describe(options));
    EXPECT_LT(distance_after_steps<float>(options), 6e-7);
    EXPECT_LT(distance_after_steps<double>(options), 3e-15);
  }
}

TEST(Optimizers, HaveLibTorchsDefaults) {
  const std::vector<Options> defaults{SgdOptions{}, AdamOptions{}, AdamWOptions{}, RmspropOptions{}, AdagradOptions{}};
  const torch::optim::AdamOptions adam;
  const torch::optim::AdamWOptions adamw;
  const torch::optim::RMSpropOptions rmsprop;
  const torch::optim::AdagradOptions adagrad;
  const torch::optim::SGDOptions sgd(SgdOptions{}.lr);
  for (std::size_t i = 0; i < defaults.size(); ++i) {
    const auto parameter = torch::zeros({1}).requires_grad_(true);
    const Made made = std::visit([&](const auto& o) { return make(o, {parameter}); }, defaults[i]);
    const auto& theirs = made->defaults();
    bool same = false;
    if (auto* o = dynamic_cast<const torch::optim::SGDOptions*>(&theirs)) same = *o == sgd;
    if (auto* o = dynamic_cast<const torch::optim::AdamOptions*>(&theirs)) same = *o == adam;
    if (auto* o = dynamic_cast<const torch::optim::AdamWOptions*>(&theirs)) same = *o == adamw;
    if (auto* o = dynamic_cast<const torch::optim::RMSpropOptions*>(&theirs)) same = *o == rmsprop;
    if (auto* o = dynamic_cast<const torch::optim::AdagradOptions*>(&theirs)) same = *o == adagrad;
    EXPECT_TRUE(same) << i;
  }
}

}  // namespace
}  // namespace cohive::optim
