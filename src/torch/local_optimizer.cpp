// The ranks of a LocalGroup around one Optimizer.
#include <torch/torch.h>

#include <array>
#include <stdexcept>

#include "cohive/torch/local_group.hpp"
#include "gradient_intake.hpp"

namespace cohive {
namespace {

/// What rank 0 tells the other ranks of a step.
struct Reply {
  StepReport report;
  bool parameters_follow = false;
};
static_assert(std::is_trivially_copyable_v<Reply>);

void refuse_rank(const std::string& why) {
  throw std::invalid_argument("cohive::LocalOptimizer: " + why);
}

}  // namespace

struct LocalOptimizer::Impl {
  Impl(LocalGroup& g, Optimizer* o, std::vector<torch::Tensor> p);

  void check_same_model();
  void collect(double samples);
  double hand_over();
  void share_parameters();
  template <class T>
  T of_leader(T value) {
    group.broadcast(&value, sizeof value);
    return value;
  }

  LocalGroup& group;
  Optimizer* optimizer;
  std::vector<torch::Tensor> parameters;
  std::int64_t values = 0;
  /// Gradients times samples of all parameters, then for each how many ranks have one, and in the last place the
  /// samples.
  torch::Tensor sums;
};

LocalOptimizer::Impl::Impl(LocalGroup& g, Optimizer* o, std::vector<torch::Tensor> p)
    : group(g), optimizer(o), parameters(std::move(p)) {
  if (group.leads() != (optimizer != nullptr)) refuse_rank("rank 0 has the Optimizer, and no other rank");
  if (optimizer) {
    const auto& options = optimizer->options();
    if (options.reuse_grad_buffers || options.use_local_updates || options.auxiliary)
      refuse_rank("reuse_grad_buffers, use_local_updates and auxiliary do not go with several ranks");
  }
  for (const auto& parameter : parameters) values += parameter.numel();
  check_same_model();
  sums = torch::zeros({values + static_cast<std::int64_t>(parameters.size()) + 1},
                      torch::dtype(torch::kFloat32).device(group.device()));
  share_parameters();
}

void LocalOptimizer::Impl::check_same_model() {
  const std::array<std::int64_t, 2> sizes{values, static_cast<std::int64_t>(parameters.size())};
  float differs = of_leader(sizes) == sizes ? 0 : 1;
  group.sum(&differs, 1);
  if (of_leader(differs) > 0) refuse_rank("the ranks have models of different sizes");
}

void LocalOptimizer::Impl::collect(double samples) {
  libtorch::make_gradients_dense(parameters);
  std::int64_t at = 0;
  std::vector<float> counts;
  for (auto& parameter : parameters) {
    auto place = sums.narrow(0, at, parameter.numel());
    at += parameter.numel();
    counts.push_back(parameter.grad().defined() ? 1 : 0);
    if (parameter.grad().defined()) {
      place.copy_(parameter.grad().reshape({-1})).mul_(samples);
    } else {
      place.zero_();
    }
    parameter.mutable_grad().reset();
  }
  counts.push_back(static_cast<float>(samples));
  sums.narrow(0, values, static_cast<std::int64_t>(counts.size())).copy_(torch::tensor(counts));
}

/// On rank 0: the mean of the gradients where some rank has one. Returns the samples of all ranks.
double LocalOptimizer::Impl::hand_over() {
  const auto counts = sums.narrow(0, values, sums.numel() - values).to(torch::kCPU);
  const double samples = counts[-1].item<double>();
  std::int64_t at = 0, count = 0;
  for (auto& parameter : parameters) {
    const bool present = counts[count++].item<float>() > 0;
    const auto mean = sums.narrow(0, at, parameter.numel()).div(samples).view(parameter.sizes());
    at += parameter.numel();
    if (present) parameter.mutable_grad() = mean.to(parameter.options().requires_grad(false));
  }
  return samples;
}

void LocalOptimizer::Impl::share_parameters() {
  if (group.size() == 1) return;
  for (auto& parameter : parameters) {
    const auto values = parameter.detach().to(group.device()).contiguous();
    group.broadcast(values);
    if (!group.leads()) parameter.copy_(values);
  }
}

LocalOptimizer::LocalOptimizer(LocalGroup& group, Optimizer* optimizer, std::vector<at::Tensor> parameters) {
  torch::NoGradGuard no_grad;
  impl_ = std::make_unique<Impl>(group, optimizer, std::move(parameters));
}

LocalOptimizer::~LocalOptimizer() = default;

StepReport LocalOptimizer::step(std::int64_t batch_size) {
  if (batch_size < 1) refuse_rank("a batch has at least one sample");
  torch::NoGradGuard no_grad;
  impl_->collect(static_cast<double>(batch_size));
  impl_->group.sum(impl_->sums);
  Reply reply;
  if (impl_->group.leads()) {
    const auto samples = static_cast<std::int64_t>(impl_->hand_over());
    reply.report = impl_->optimizer->step(samples);
    reply.parameters_follow = reply.report.epoch_changed || reply.report.loaded_state || reply.report.updated;
  }
  reply = impl_->of_leader(reply);
  if (reply.parameters_follow) impl_->share_parameters();
  return reply.report;
}

bool LocalOptimizer::load_state_from_peers() {
  torch::NoGradGuard no_grad;
  const bool loaded = impl_->of_leader(impl_->optimizer && impl_->optimizer->load_state_from_peers());
  if (loaded) impl_->share_parameters();
  return loaded;
}

std::size_t LocalOptimizer::finish() {
  torch::NoGradGuard no_grad;
  const auto group = impl_->of_leader(impl_->optimizer ? impl_->optimizer->finish() : std::size_t{0});
  impl_->share_parameters();
  return group;
}

}  // namespace cohive
