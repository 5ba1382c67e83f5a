#include <algorithm>
#include <atomic>

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
        if (!shared->work.steps[result.stretch.tensor].has_gradient) return;
        auto& step = shared->steps[result.stretch.tensor];
        step.run(result.stretch.offset, result.stretch.length);
        if (shared->work.stepped && !step.has_second_phase()) shared->work.stepped(result.stretch);
      };
    std::vector<TensorSpan> memory;
    for (const auto& sum : all.sums) memory.emplace_back(sum.values);
    parts_ = std::make_shared<HostParts>(runtime_, all.infos, std::move(memory), std::move(how));
  }

  std::shared_ptr<averaging::TensorParts> parts() override { return parts_; }

  Task<std::vector<bool>> finish_step() override {
    auto& steps = shared_->steps;
    if (steps.empty()) co_return std::vector<bool>();
    if (!steps_in_round()) co_await clip();
    const auto taken = co_await find_steps();
    std::vector<std::size_t> left, second;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const bool made = steps_in_round() && shared_->work.steps[i].has_gradient;
      left.push_back(taken[i] && !made ? steps[i].size() : 0);
      second.push_back(taken[i] && steps[i].has_second_phase() ? steps[i].size() : 0);
    }
    co_await optim::for_stretches(runtime_, std::move(left), [shared = shared_](const optim::Stretch& stretch) {
      shared->steps[stretch.tensor].run(stretch.offset, stretch.count);
    });
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (second[i] > 0) steps[i].settle();
    co_await optim::for_stretches(runtime_, std::move(second), [shared = shared_](const optim::Stretch& stretch) {
      shared->steps[stretch.tensor].finish(stretch.offset, stretch.count);
    });
    co_return taken;
  }

 private:
  /// With work on the pool.
  struct Shared {
    explicit Shared(GradientWork all) : work(std::move(all)) {
      for (const auto& step : work.steps) steps.emplace_back(step.options, step.memory, step.settings);
    }
    GradientWork work;
    std::vector<optim::TensorStep> steps;
  };

  /// Finds the parameters that step: those without a gradient of this peer where the average shows that another member
  /// had one. The others keep their values, wherever the step would have put them.
  Task<std::vector<bool>> find_steps() {
    const auto& work = shared_->work;
    std::vector<std::size_t> unsure;
    for (const auto& step : work.steps) unsure.push_back(step.has_gradient ? 0 : step.memory.parameters.size());
    const auto nonzero = std::make_shared<std::vector<std::atomic<bool>>>(unsure.size());
    co_await optim::for_stretches(runtime_, unsure, [shared = shared_, nonzero](const optim::Stretch& stretch) {
      const auto values = shared->work.sums[stretch.tensor].values.subspan(stretch.offset, stretch.count);
      if (std::ranges::any_of(values, [](float value) { return value != 0; })) (*nonzero)[stretch.tensor] = true;
    });
    std::vector<bool> steps;
    std::vector<optim::Copying> kept;
    for (std::size_t i = 0; i < work.steps.size(); ++i) {
      const auto& [parameters, result, copy, gradient, state] = work.steps[i].memory;
      steps.push_back(work.steps[i].has_gradient || (*nonzero)[i]);
      if (!steps.back() && result.data() != parameters.data()) kept.push_back({parameters, result});
    }
    co_await optim::copy(runtime_, std::move(kept), shared_);
    co_return steps;
  }

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

  Runtime& runtime_;
  const std::shared_ptr<Shared> shared_;
  std::shared_ptr<HostParts> parts_;
};

class HostBackend final : public Backend {
 public:
  explicit HostBackend(Runtime& runtime) : runtime_(runtime) {}

  bool is_host() const noexcept override { return true; }
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
