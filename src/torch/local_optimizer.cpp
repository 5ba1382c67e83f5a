// The ranks of a LocalGroup around one Optimizer.
#include <torch/torch.h>

#include <array>
#include <stdexcept>

#include "cohive/torch/local_group.hpp"

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
  double sum_over_ranks();
  void hand_over(double samples);
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
  sums = torch::zeros({values + static_cast<std::int64_t>(parameters.size()) + 1}, torch::kFloat32);
  share_parameters();
}

void LocalOptimizer::Impl::check_same_model() {
  const std::array<std::int64_t, 2> sizes{values, static_cast<std::int64_t>(parameters.size())};
  float differs = of_leader(sizes) == sizes ? 0 : 1;
  group.sum(&differs, 1);
  if (of_leader(differs) > 0) refuse_rank("the ranks have models of different sizes");
}

void LocalOptimizer::Impl::collect(double samples) {
  std::int64_t at = 0, counts = values;
  for (auto& parameter : parameters) {
    auto place = sums.narrow(0, at, parameter.numel());
    at += parameter.numel();
    sums[counts++] = parameter.grad().defined() ? 1 : 0;
    if (parameter.grad().defined()) {
      place.copy_(parameter.grad().reshape({-1})).mul_(samples);
    } else {
      place.zero_();
    }
    parameter.mutable_grad().reset();
  }
  sums[-1] = samples;
}

double LocalOptimizer::Impl::sum_over_ranks() {
  group.sum(sums.data_ptr<float>(), static_cast<std::size_t>(sums.numel()));
  return sums[-1].item<double>();
}

void LocalOptimizer::Impl::hand_over(double samples) {
  std::int64_t at = 0, counts = values;
  for (auto& parameter : parameters) {
    const bool present = sums[counts++].item<float>() > 0;
    const auto mean = sums.narrow(0, at, parameter.numel()).div(samples).view(parameter.sizes());
    at += parameter.numel();
    if (present) parameter.mutable_grad() = mean.to(parameter.options().requires_grad(false));
  }
}

void LocalOptimizer::Impl::share_parameters() {
  if (group.size() == 1) return;
  for (auto& parameter : parameters) {
    auto host = parameter.detach().to(torch::kCPU).contiguous();
    group.broadcast(host.data_ptr(), host.nbytes());
    if (!group.leads()) parameter.copy_(host);
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
  const double samples = impl_->sum_over_ranks();
  Reply reply;
  if (impl_->group.leads()) {
    impl_->hand_over(samples);
    reply.report = impl_->optimizer->step(static_cast<std::int64_t>(samples));
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
