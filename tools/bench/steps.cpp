// A model of square layers is trained with Adam for a while in each of these ways, beside the same batches without any
// step. The steps of cohive are those of a trainer that is alone: nothing of them waits for a network.
//
//   libtorch            torch::optim::Adam where the model is
//   libtorch_offloaded  gradients copied to the host, torch::optim::Adam there, parameters copied back; all waited for
//   cohive              cohive's step where the model is; the trainer waits
//   cohive_delayed      the same beside the next batches
//   cohive_offloaded    cohive's step on the host (offload_optimizer); the trainer waits
//   cohive_offloaded_delayed
//                       the same beside the next batches, with gradients that leave during backward()
#include "bench/steps.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>

#include "cohive/core/runtime.hpp"
#include "torch/torch_replica.hpp"

namespace cohive::bench {
namespace {

using torch::optim::Adam;
using train::Place;

constexpr double kOverlapGoal = 0.95, kRate = 1e-7;
constexpr std::size_t kStepsOfRound = 3;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Layers {
 public:
  Layers(torch::Device device, const StepSettings& settings) : device_(device), side_(settings.side) {
    const auto bytes = static_cast<std::size_t>(side_ * side_) * sizeof(float);
    const std::size_t count = std::max<std::size_t>(1, settings.megabytes * 1'000'000 / bytes);
    const double scale = std::sqrt(2 / static_cast<double>(side_));  // layers leave values as large as they are
    for (std::size_t i = 0; i < count; ++i)
      weights_.push_back((torch::randn({side_, side_}) * scale).to(device).requires_grad_());
    batch_ = torch::randn({side_, side_}).to(device);
  }
  std::vector<torch::Tensor>& weights() { return weights_; }
  void backward() {
    torch::Tensor out = batch_;
    for (const auto& weight : weights_) out = out.matmul(weight).relu();
    out.sum().backward();
  }
  void clear_gradients() {
    for (auto& weight : weights_) weight.mutable_grad().reset();
  }
  /// Waits until the device has done all.
  void synchronize() const {
    if (!device_.is_cpu()) (void)weights_.front().flatten()[0].item<float>();
  }
  torch::Device device() const { return device_; }

 private:
  const torch::Device device_;
  const std::int64_t side_;
  std::vector<torch::Tensor> weights_;
  torch::Tensor batch_;
};

/// A way to step after the batches of an epoch.
class Way {
 public:
  virtual ~Way() = default;
  virtual void after_batch(Layers& model) { model.clear_gradients(); }
  virtual void step(Layers& model) = 0;
  /// Waits for what goes on in the background.
  virtual void finish() {}
};

class NoStep final : public Way {
 public:
  void step(Layers&) override {}
};

class ByLibTorch final : public Way {
 public:
  explicit ByLibTorch(Layers& model) : adam_(model.weights(), kRate) {}
  void after_batch(Layers&) override {}  // gradients add up in the model
  void step(Layers& model) override {
    adam_.step();
    model.clear_gradients();
  }

 private:
  Adam adam_;
};

class OffloadedByLibTorch final : public Way {
 public:
  explicit OffloadedByLibTorch(Layers& model) : masters_(masters_of(model)), adam_(masters_, kRate) {}
  void after_batch(Layers&) override {}
  void step(Layers& model) override {
    torch::NoGradGuard no_grad;
    auto& weights = model.weights();
    for (std::size_t i = 0; i < weights.size(); ++i) masters_[i].mutable_grad() = weights[i].grad().to(torch::kCPU);
    adam_.step();
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i].copy_(masters_[i]);
    model.clear_gradients();
  }

 private:
  static std::vector<torch::Tensor> masters_of(Layers& model) {
    std::vector<torch::Tensor> masters;
    for (const auto& weight : model.weights())
      masters.push_back(weight.detach().to(torch::kCPU, torch::kFloat32, false, true).requires_grad_());
    return masters;
  }
  std::vector<torch::Tensor> masters_;
  Adam adam_;
};

struct HowCohiveSteps {
  bool offloaded = false, delayed = false;
};

class ByCohive final : public Way {
 public:
  ByCohive(Layers& model, HowCohiveSteps how) : how_(how) {
    std::vector<torch::optim::OptimizerParamGroup> groups{torch::optim::OptimizerParamGroup(model.weights())};
    if (how.offloaded) groups = libtorch::make_masters(groups);
    adam_ = std::make_unique<Adam>(std::move(groups), torch::optim::AdamOptions(kRate));
    OptimizerOptions options;
    options.run_id = "bench";
    options.offload_optimizer = how.offloaded;
    options.offload_gradients_early = how.offloaded && how.delayed;
    options.delay_optimizer_step = options.delay_state_averaging = how.delayed;
    loop_.run([&]() -> Task<void> {
      replica_ = libtorch::make_replica(loop_.runtime(), {model.weights(), *adam_}, options);
      co_return;
    });
  }
  ~ByCohive() override {
    loop_.run([this]() -> Task<void> {
      replica_.reset();
      co_return;
    });
  }

  void after_batch(Layers&) override {
    replica_->sync_with_caller_stream();
    replica_->intake().take_batch(1, 1);
  }
  void step(Layers&) override {
    finish();
    replica_->sync_with_caller_stream();
    replica_->intake().cut();
    const Place place = how_.delayed ? Place::next : Place::live;
    going_on_ = loop_.runtime().submit([this, place] { return step_on_loop(replica_->replica(), place); });
    if (!how_.delayed) going_on_.get();
  }
  void finish() override {
    if (!going_on_.valid()) return;
    going_on_.get();
    replica_->sync_with_caller_stream();
    replica_->replica().publish();
  }

 private:
  static Task<void> step_on_loop(train::Replica& replica, Place place) {
    co_await replica.free_next();
    const auto gradients = co_await replica.take_gradients(place);
    co_await gradients.parts->finish();
    co_await replica.finish_step(0, true);
  }

  const HowCohiveSteps how_;
  std::unique_ptr<Adam> adam_;
  RuntimeThread loop_;
  std::unique_ptr<libtorch::TorchReplica> replica_;  // of the loop's thread
  std::future<void> going_on_;
};

/// Milliseconds of a step with its batches, in the fastest of the rounds that there is time for.
double milliseconds(Layers& model, Way& way, std::size_t batches, double seconds) {
  const auto round = [&] {
    const double start = now();
    for (std::size_t i = 0; i < kStepsOfRound; ++i) {
      for (std::size_t k = 0; k < batches; ++k) {
        model.backward();
        way.after_batch(model);
      }
      way.step(model);
    }
    way.finish();
    model.synchronize();
    return (now() - start) * 1000 / static_cast<double>(kStepsOfRound);
  };
  round();  // takes memory that is used again
  double best = round();
  for (const double end = now() + seconds; now() < end;) best = std::min(best, round());
  return best;
}

}  // namespace

nlohmann::json steps(torch::Device device, const StepSettings& settings) {
  torch::manual_seed(7348);
  Layers model(device, settings);
  const auto measured = [&](std::unique_ptr<Way> way, std::size_t batches) {
    return milliseconds(model, *way, batches, settings.seconds / 8);
  };
  // So many batches that they take twice as long as what they are to hide.
  const double batch = measured(std::make_unique<NoStep>(), 1);
  const double with_step = measured(std::make_unique<OffloadedByLibTorch>(model), 1);
  const auto batches = static_cast<std::size_t>(std::clamp(2 * (with_step - batch) / batch, 1.0, 1000.0));
  const double without = measured(std::make_unique<NoStep>(), batches);
  nlohmann::json result{{"device", device.str()},
                        {"unit", "ms beyond the batches"},
                        {"parameters_MB", settings.megabytes},
                        {"batches", batches},
                        {"ms_of_the_batches", without}};
  const auto beyond = [&](std::unique_ptr<Way> way) { return measured(std::move(way), batches) - without; };
  result["libtorch"] = beyond(std::make_unique<ByLibTorch>(model));
  const double offloaded = beyond(std::make_unique<OffloadedByLibTorch>(model));
  result["libtorch_offloaded"] = offloaded;
  result["cohive"] = beyond(std::make_unique<ByCohive>(model, HowCohiveSteps{}));
  result["cohive_delayed"] = beyond(std::make_unique<ByCohive>(model, HowCohiveSteps{.delayed = true}));
  result["cohive_offloaded"] = beyond(std::make_unique<ByCohive>(model, HowCohiveSteps{.offloaded = true}));
  const double overlapped =
      beyond(std::make_unique<ByCohive>(model, HowCohiveSteps{.offloaded = true, .delayed = true}));
  result["cohive_offloaded_delayed"] = overlapped;
  if (offloaded > 0)
    result["hidden"] = {{"share", std::clamp(1 - overlapped / offloaded, 0.0, 1.0)}, {"goal", kOverlapGoal}};
  return result;
}

}  // namespace cohive::bench
