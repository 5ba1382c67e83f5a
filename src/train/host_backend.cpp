#include <algorithm>

#include "cohive/train/backend.hpp"

namespace cohive::train {
namespace {

using averaging::HostParts;
using averaging::TensorInfo;
using averaging::TensorSpan;

class HostGradientRound final : public GradientRound {
 public:
  HostGradientRound(Runtime& runtime, GradientWork work)
      : runtime_(runtime), shared_(std::make_shared<Shared>(std::move(work))) {
    const GradientWork& all = shared_->work;
    averaging::HostPartsOptions how;
    how.factor = static_cast<float>(all.factor);
    how.residuals = all.residuals;
    if (steps_in_round())
      how.on_result = [shared = shared_](const averaging::StretchResult& result) {
        auto& step = shared->steps[result.stretch.tensor];
        step.run(result.stretch.offset, result.stretch.length);
        if (shared->work.stepped && !step.has_second_phase()) shared->work.stepped(result.stretch);
      };
    std::vector<TensorSpan> memory;
    for (const auto& sum : all.sums) memory.emplace_back(sum.values);
    parts_ = std::make_shared<HostParts>(runtime_, all.infos, std::move(memory), std::move(how));
  }

  std::shared_ptr<averaging::TensorParts> parts() override { return parts_; }

  Task<void> finish_step() override {
    const std::shared_ptr<std::vector<optim::TensorStep>> steps(shared_, &shared_->steps);
    if (steps->empty()) co_return;
    if (!steps_in_round()) {
      co_await clip();
      co_await optim::run_steps(runtime_, steps, shared_);
    } else if (std::ranges::any_of(*steps, &optim::TensorStep::has_second_phase)) {
      co_await finish_second_phase(steps);
    }
  }

 private:
  /// With work on the pool.
  struct Shared {
    explicit Shared(GradientWork all) : work(std::move(all)) {
      for (const auto& [options, memory, settings] : work.steps) steps.emplace_back(options, memory, settings);
    }
    GradientWork work;
    std::vector<optim::TensorStep> steps;
  };

  bool steps_in_round() const { return !shared_->steps.empty() && !shared_->work.max_norm; }

  /// The norm is that of the averaged gradients of all parameters, so every member clips alike.
  Task<void> clip() {
    std::vector<optim::ConstView> views;
    std::vector<optim::View> gradients;
    for (const auto& sum : shared_->work.sums) {
      views.emplace_back(sum.values);
      gradients.emplace_back(sum.values);
    }
    const double squares = co_await optim::square_sum(runtime_, std::move(views), shared_);
    const double factor = optim::clip_coefficient(squares, *shared_->work.max_norm);
    if (factor < 1) co_await optim::scale(runtime_, std::move(gradients), factor, shared_);
  }

  /// What needs norms of whole tensors, when all their stretches have been read.
  Task<void> finish_second_phase(std::shared_ptr<std::vector<optim::TensorStep>> steps) {
    std::vector<std::size_t> sizes;
    for (auto& step : *steps) {
      const bool unfinished = step.has_second_phase();
      if (unfinished) step.settle();
      sizes.push_back(unfinished ? step.size() : 0);
    }
    co_await optim::for_stretches(runtime_, std::move(sizes), [steps](const optim::Stretch& stretch) {
      (*steps)[stretch.tensor].finish(stretch.offset, stretch.count);
    });
  }

  Runtime& runtime_;
  const std::shared_ptr<Shared> shared_;
  std::shared_ptr<HostParts> parts_;
};

class HostBackend final : public Backend {
 public:
  explicit HostBackend(Runtime& runtime) : runtime_(runtime) {}

  Buffer allocate(std::size_t size) override { return Buffer::on_host(size); }

  Task<bool> all_finite(std::vector<optim::ConstView> values, std::shared_ptr<const void> owner) override {
    return optim::all_finite(runtime_, std::move(values), std::move(owner));
  }
  Task<bool> accumulate(std::vector<optim::Addition> additions, optim::Accumulating how,
                        std::shared_ptr<const void> owner) override {
    return optim::accumulate(runtime_, std::move(additions), how, std::move(owner));
  }
  Task<void> copy(std::vector<TensorSpan> copies, std::shared_ptr<const void> owner) override {
    std::vector<optim::Copying> all;
    for (const auto& [from, to] : copies) all.push_back({std::span<const float>(from), to});
    return optim::copy(runtime_, std::move(all), std::move(owner));
  }
  Task<void> clear(std::vector<Buffer> buffers) override {
    std::vector<std::size_t> sizes;
    for (const auto& buffer : buffers) sizes.push_back(buffer.values.size());
    auto fill = [buffers = std::move(buffers)](const optim::Stretch& stretch) {
      std::ranges::fill(buffers[stretch.tensor].values.subspan(stretch.offset, stretch.count), 0.0f);
    };
    return optim::for_stretches(runtime_, std::move(sizes), std::move(fill));
  }

  std::shared_ptr<GradientRound> gradient_round(GradientWork work) override {
    return std::make_shared<HostGradientRound>(runtime_, std::move(work));
  }
  std::shared_ptr<averaging::TensorParts> state_parts(std::vector<TensorInfo> infos, std::vector<TensorSpan> memory,
                                                      bool differences) override {
    averaging::HostPartsOptions options;
    options.differences = differences;
    return std::make_shared<HostParts>(runtime_, std::move(infos), std::move(memory), std::move(options));
  }
  void add_to_live(std::span<float> change, std::span<float> live) override { optim::accumulate(change, live); }

 private:
  Runtime& runtime_;
};

}  // namespace

std::shared_ptr<Backend> host_backend(Runtime& runtime) {
  return std::make_shared<HostBackend>(runtime);
}

}  // namespace cohive::train
