#include "cohive/cuda/backend.hpp"

#include "cohive/cuda/codec.hpp"
#include "cohive/cuda/device_parts.hpp"
#include "device_steps.hpp"
#include "failure.hpp"
#include "lanes.hpp"
#include "model_kernels.hpp"
#include "stored_as.hpp"

namespace cohive::cuda {
namespace {

using averaging::TensorInfo;
using averaging::TensorSpan;
using train::Buffer;

kernels::Input gradient_of(const optim::ConstView& view, std::uint32_t* found) {
  const auto stored = stored_as(view.dtype());
  if (!stored) throw std::invalid_argument("gradients on a device have 32 or 16 bits");
  return {view.data(), *stored, nullptr, found};
}

class DeviceGradientRound final : public train::GradientRound {
 public:
  DeviceGradientRound(std::shared_ptr<Lanes> lanes, std::shared_ptr<LowRankProducts> products, train::GradientWork work)
      : lanes_(std::move(lanes)), shared_(std::make_shared<Shared>(std::move(work))) {
    const train::GradientWork& all = shared_->work;
    DevicePartsOptions how;
    how.lanes = lanes_;
    how.products = std::move(products);
    how.factor = static_cast<float>(all.factor);
    how.residuals = all.residuals;
    if (steps_in_round())
      how.on_result = [shared = shared_](const averaging::StretchResult& result, Stream& stream) {
        return shared->steps.queue(result.stretch, stream);
      };
    std::vector<TensorSpan> memory;
    for (const auto& sum : all.sums) memory.emplace_back(sum.values);
    parts_ = DeviceParts::create(lanes_->runtime(), all.infos, std::move(memory), std::move(how)).value();
  }

  std::shared_ptr<averaging::TensorParts> parts() override { return parts_; }

  Task<std::vector<bool>> finish_step() override {
    if (shared_->steps.empty()) co_return std::vector<bool>();
    const Lanes::Taken lane(*lanes_, co_await lanes_->turn());
    if (!steps_in_round()) co_await clip(*lane);
    co_return (co_await shared_->steps.finish(*lanes_, *lane, !steps_in_round())).value();
  }

 private:
  struct Shared {
    explicit Shared(train::GradientWork all) : work(std::move(all)), steps(work.steps) {}
    train::GradientWork work;
    DeviceSteps steps;
  };

  bool steps_in_round() const { return !shared_->steps.empty() && !shared_->work.max_norm; }

  Task<void> clip(Lane& lane) {
    std::vector<std::span<const float>> sums;
    for (const auto& sum : shared_->work.sums) sums.emplace_back(sum.values);
    double squares = 0;  // tensor by tensor, as the host adds them up
    for (const double one : (co_await square_sums(*lanes_, lane, std::move(sums))).value()) squares += one;
    const double factor = optim::clip_coefficient(squares, *shared_->work.max_norm);
    if (factor >= 1) co_return;
    Queued queued(lane.stream);
    for (const auto& sum : shared_->work.sums) scale_async(lane.stream, sum.values, static_cast<float>(factor)).value();
    (co_await queued.done(lanes_->runtime())).value();
  }

  const std::shared_ptr<Lanes> lanes_;
  const std::shared_ptr<Shared> shared_;
  std::shared_ptr<DeviceParts> parts_;
};

class DeviceBackend final : public train::Backend {
 public:
  DeviceBackend(std::shared_ptr<Lanes> lanes, BackendOptions options)
      : lanes_(std::move(lanes)), options_(std::move(options)) {}

  Buffer allocate(std::size_t size) override {
    if (options_.allocate) {
      Buffer buffer = options_.allocate(size);
      follow_caller();  // what had the memory before may still be queued there
      return buffer;
    }
    const auto memory =
        std::make_shared<DeviceBuffer>(DeviceBuffer::create(size * sizeof(float), lanes_->device()).value());
    return {memory, memory->floats()};
  }

  void follow_caller() override { lanes_->follow(trainer_stream()).value(); }

  Task<bool> all_finite(std::vector<optim::ConstView> values, std::shared_ptr<const void> owner) override {
    return flagged(
        [all = std::move(values)](Stream& stream, std::uint32_t* found) {
          for (const auto& one : all)
            find_non_finite_async(stream, DeviceValues(one.dtype(), one.data(), one.size()), found).value();
        },
        std::move(owner));
  }

  Task<bool> accumulate(std::vector<optim::Addition> additions, optim::Accumulating how,
                        std::shared_ptr<const void> owner) override {
    return flagged(
        [all = std::move(additions), how](Stream& stream, std::uint32_t* found) {
          for (const auto& [gradient, sum] : all)
            on(stream, [&](CUstream_st* queue) {
              return kernels::accumulate(queue, gradient_of(gradient, found), static_cast<float>(how.factor), how.first,
                                         sum.data(), sum.size());
            }).value();
        },
        std::move(owner));
  }

  Task<void> copy(std::vector<TensorSpan> copies, std::shared_ptr<const void> owner) override {
    return run(
        [all = std::move(copies)](Lane& lane) {
          for (const auto& [from, to] : all) copy_async(lane.stream, from, to).value();
        },
        std::move(owner));
  }

  Task<void> clear(std::vector<Buffer> buffers) override {
    return run(
        [all = std::move(buffers)](Lane& lane) {
          for (const auto& buffer : all) clear_async(lane.stream, buffer.values).value();
        },
        nullptr);
  }

  std::shared_ptr<train::GradientRound> gradient_round(train::GradientWork work) override {
    return std::make_shared<DeviceGradientRound>(lanes_, options_.products, std::move(work));
  }

  std::shared_ptr<averaging::TensorParts> state_parts(std::vector<TensorInfo> infos, std::vector<TensorSpan> memory,
                                                      bool differences) override {
    DevicePartsOptions how;
    how.lanes = lanes_;
    how.differences = differences;
    return DeviceParts::create(lanes_->runtime(), std::move(infos), std::move(memory), std::move(how)).value();
  }

  /// On the trainer's own stream: what it queued before reads the parameters as they were.
  void add_to_live(std::span<float> change, std::span<float> live) override {
    const kernels::Applied to{live.data(), live.data(), false};
    on_device(lanes_->device(), nullptr, [&] {
      return kernels::apply_difference(trainer_stream(), change.data(), 1, to, live.size());
    }).value();
  }

 private:
  using Queue = std::function<void(Lane&)>;

  CUstream_st* trainer_stream() const { return options_.trainer_stream ? options_.trainer_stream() : nullptr; }

  /// Queues work on a lane, and waits for it.
  Task<void> run(Queue queue, std::shared_ptr<const void> owner) {
    const auto used = std::move(owner);
    const Lanes::Taken lane(*lanes_, co_await lanes_->turn());
    Queued queued(lane->stream);
    queue(*lane);
    (co_await queued.done(lanes_->runtime())).value();
  }

  /// The same for passes that look for values which are not finite. False when there are any.
  Task<bool> flagged(std::function<void(Stream&, std::uint32_t*)> queue, std::shared_ptr<const void> owner) {
    const auto used = std::move(owner);
    const Lanes::Taken lane(*lanes_, co_await lanes_->turn());
    Queued queued(lane->stream);
    queue(lane->stream, lane->clear_flag().value());
    lane->read_flag().value();
    (co_await queued.done(lanes_->runtime())).value();
    co_return !lane->flagged();
  }

  const std::shared_ptr<Lanes> lanes_;
  const BackendOptions options_;
};

}  // namespace

Result<std::shared_ptr<train::Backend>> make_backend(Runtime& runtime, BackendOptions options) {
  auto lanes = Lanes::create(runtime, options.device, options.streams);
  if (!lanes) return lanes.error();
  return std::make_shared<DeviceBackend>(std::move(*lanes), std::move(options));
}

}  // namespace cohive::cuda
