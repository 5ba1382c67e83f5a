// The kernels of the codecs on a GPU, and those that add up and step, in gigabytes of float32 per second. Beside each
// is the share of the memory's bandwidth that it uses, which is what a plain copy of the same data reads and writes.
// Then what the bus takes for a part of a round that is reduced on the host or on the GPU, and how long gradients of
// that size take to the host beside work that stands for a backward pass. Last, steps of a LibTorch model (steps.cpp).
#include "bench/bench.hpp"
#include "common/program.hpp"
#ifdef COHIVE_BENCH_CUDA
#include <algorithm>
#include <random>

#include "cohive/cuda/backend.hpp"
#include "cohive/cuda/codec.hpp"
#include "cohive/cuda/errors.hpp"
#include "failure.hpp"
#include "model_kernels.hpp"
#include "step_kernels.hpp"
#endif
#ifdef COHIVE_BENCH_STEPS
#include "bench/steps.hpp"
#endif

namespace cohive::bench {
#ifdef COHIVE_BENCH_CUDA
namespace {

using cuda::DeviceBuffer;
using cuda::Stream;
using cuda::kernels::Stored;

constexpr int kAtOnce = 8;  // queued together: what a launch costs the host is hidden behind the one before

/// Of the bandwidth of a copy; 0: none is set.
double goal_of(codec::Codec codec) {
  if (codec == codec::Codec::float16 || codec == codec::Codec::blockwise8) return 0.8;
  return codec == codec::Codec::uniform8 ? 0.6 : 0;
}
constexpr double kOverlapGoal = 0.95;  // of an offloaded step

/// Tensors of one size, and what is measured on them.
class Device {
 public:
  Device(std::size_t count, double seconds)
      : stream_(Stream::create().value()),
        values_(floats(count)),
        out_(floats(count)),
        left_(floats(count)),
        count_(count),
        seconds_(seconds) {
    std::vector<float> normal(count);
    std::mt19937 random(7348);
    std::normal_distribution<float> draw;
    for (float& value : normal) value = draw(random);
    const ByteView bytes(reinterpret_cast<const std::uint8_t*>(normal.data()), count * sizeof(float));
    stream_.upload_async(bytes, values_.bytes().data()).value();
    cuda::clear_async(stream_, out_.floats()).value();
    cuda::clear_async(stream_, left_.floats()).value();
    stream_.synchronize().value();
  }

  double copy() {
    return copied_ = measured([&] { return cuda::copy_async(stream_, values_.floats(), out_.floats()); });
  }

  nlohmann::json codec(const codec::CodecInfo& info) {
    const std::size_t size = *cuda::encoded_size(info.codec, count_);
    const auto scratch = DeviceBuffer::create(cuda::scratch_size(info.codec, count_)).value();
    const auto encoded = DeviceBuffer::create(size).value();
    cuda::EncodeMemory memory{.scratch = scratch.bytes()};
    const auto encode = [&] {
      return cuda::encode_async(stream_, info.codec, values_.floats(), encoded.bytes(), memory);
    };
    const double floats = static_cast<double>(count_) * sizeof(float), bytes = static_cast<double>(size);
    nlohmann::json row{{"bytes", size}};
    row["encode"] = shared(encode, floats + bytes);
    if (info.error_feedback) {
      memory.owed = memory.left = left_.floats();
      row["encode_with_feedback"] = shared(encode, 3 * floats + bytes);
      cuda::clear_async(stream_, left_.floats()).value();
    }
    row["decode"] =
        shared([&] { return cuda::decode_async(stream_, info.codec, encoded.bytes(), out_.floats()); }, bytes + floats);
    row["accumulate"] =
        shared([&] { return cuda::accumulate_async(stream_, info.codec, encoded.bytes(), 0.5f, out_.floats()); },
               bytes + 2 * floats);
    if (const double goal = goal_of(info.codec); goal > 0) {
      row["goal"] = goal;
      row["reached"] = row["encode"]["share"] >= goal && row["decode"]["share"] >= goal;
    }
    return row;
  }

  nlohmann::json sums() {
    const auto flag = DeviceBuffer::create(sizeof(std::uint32_t)).value();
    auto* const found = reinterpret_cast<std::uint32_t*>(flag.bytes().data());
    const auto values = values_.floats(), out = out_.floats();
    const double floats = static_cast<double>(count_) * sizeof(float);
    return {{"add", shared([&] { return cuda::add_async(stream_, values, 0.5f, out); }, 3 * floats)},
            {"scale", shared([&] { return cuda::scale_async(stream_, out, 1.0f); }, 2 * floats)},
            {"find_non_finite", shared([&] { return cuda::find_non_finite_async(stream_, values, found); }, floats)},
            {"accumulate", shared(kernel([&](CUstream_st* queue) {
                                    const cuda::kernels::Input in{values.data(), Stored::floats, nullptr, found};
                                    return cuda::kernels::accumulate(queue, in, 1, false, out.data(), count_);
                                  }),
                                  3 * floats)},
            {"accumulate_halves", shared(kernel([&](CUstream_st* queue) {
                                           const cuda::kernels::Input in{values.data(), Stored::halves, nullptr, found};
                                           return cuda::kernels::accumulate(queue, in, 1, false, out.data(), count_);
                                         }),
                                         2.5 * floats)},
            {"apply_average", shared(kernel([&](CUstream_st* queue) {
                                       const cuda::kernels::Applied to{out.data(), out.data(), false};
                                       return cuda::kernels::apply_average(queue, values.data(), 0.5f, to, count_);
                                     }),
                                     3 * floats)}};
  }

  /// Steps of optimizers where the parameters are.
  nlohmann::json steps() {
    const auto first = floats_of_zero(), second = floats_of_zero();
    const optim::StepArrays<float> arrays{values_.floats().data(),
                                          out_.floats().data(),
                                          out_.floats().data(),
                                          {first.floats().data(), second.floats().data(), nullptr}};
    const double floats = static_cast<double>(count_) * sizeof(float);
    const auto step = [&](const auto& numbers, double arrays_moved) {
      return shared(kernel([&](CUstream_st* queue) { return cuda::kernels::step(queue, numbers, arrays, count_); }),
                    arrays_moved * floats);
    };
    optim::SgdNumbers<float> sgd{};
    sgd.factor = 1;
    sgd.rate = -1e-6f;
    optim::SgdNumbers<float> momentum = sgd;
    momentum.momentum = 0.9f;
    momentum.fresh = 1;
    optim::AdamNumbers<float> adam{};
    adam.factor = adam.shrink = adam.correction = 1;
    adam.beta1 = 0.9f, adam.fresh1 = 0.1f, adam.beta2 = 0.999f, adam.fresh2 = 0.001f;
    adam.eps = 1e-8f, adam.rate = -1e-6f;
    return {{"sgd", step(sgd, 3)}, {"sgd_momentum", step(momentum, 5)}, {"adam", step(adam, 7)}};
  }

  /// Milliseconds that a member's own part of a round of n members takes, with 1 / n of the values: decoded, added up
  /// and answered. On the host: its values go there and their average comes back, as float32; the arithmetic there is
  /// that of `cohive-bench codec`. On the GPU: what others send is copied there, and the answers back.
  nlohmann::json reducing(codec::Codec codec) {
    nlohmann::json rows = nlohmann::json::array();
    for (const std::size_t members : {2, 4, 16}) {
      const std::size_t part = std::max<std::size_t>(1, count_ / members), size = *cuda::encoded_size(codec, part);
      const auto pinned = cuda::HostBuffer::create(std::max(size, part * sizeof(float))).value();
      const auto encoded = DeviceBuffer::create(size).value();
      const auto scratch = DeviceBuffer::create(cuda::scratch_size(codec, part)).value();
      const auto own = values_.floats().first(part), sum = out_.floats().first(part);
      cuda::encode_async(stream_, codec, own, encoded.bytes(), {.scratch = scratch.bytes()}).value();
      stream_.download_async(encoded.bytes().data(), pinned.bytes().first(size)).value();
      const double host = milliseconds([&] {
        stream_.download_async(own.data(), pinned.bytes().first(part * sizeof(float))).value();
        stream_.upload_async(ByteView(pinned.bytes()).first(part * sizeof(float)), sum.data()).value();
      });
      const double gpu = milliseconds([&] {
        for (std::size_t other = 1; other < members; ++other) {
          stream_.upload_async(ByteView(pinned.bytes()).first(size), encoded.bytes().data()).value();
          cuda::accumulate_async(stream_, codec, encoded.bytes(), 1, sum).value();
        }
        for (std::size_t other = 1; other < members; ++other) {
          cuda::encode_async(stream_, codec, sum, encoded.bytes(), {.scratch = scratch.bytes()}).value();
          stream_.download_async(encoded.bytes().data(), pinned.bytes().first(size)).value();
        }
      });
      rows.push_back({{"members", members}, {"on_the_host", host}, {"on_the_gpu", gpu}});
    }
    return rows;
  }

 private:
  static DeviceBuffer floats(std::size_t count) { return DeviceBuffer::create(count * sizeof(float)).value(); }
  DeviceBuffer floats_of_zero() {
    auto zeros = floats(count_);
    cuda::clear_async(stream_, zeros.floats()).value();
    return zeros;
  }
  /// Queues a kernel that has no function of its own in the library's interface.
  std::function<Result<>()> kernel(std::function<int(CUstream_st*)> launch) {
    return [this, launch = std::move(launch)] { return cuda::on(stream_, launch); };
  }

  /// \param bytes  that one call reads and writes at least
  nlohmann::json shared(const std::function<Result<>()>& queue, double bytes) {
    const double floats = static_cast<double>(count_) * sizeof(float), gigabytes = measured(queue);
    return {{"rate", gigabytes}, {"share", gigabytes * bytes / floats / (2 * copied_)}};
  }
  double milliseconds(const std::function<void()>& queue) {
    const double gigabytes = rate(1'000'000, seconds_, [&] {
      queue();
      stream_.synchronize().value();
    });
    return 1 / gigabytes;
  }
  double measured(const std::function<Result<>()>& queue) {
    return rate(kAtOnce * count_ * sizeof(float), seconds_, [&] {
      for (int i = 0; i < kAtOnce; ++i) queue().value();
      stream_.synchronize().value();
    });
  }

  Stream stream_;
  const DeviceBuffer values_, out_, left_;
  const std::size_t count_;
  const double seconds_;
  double copied_ = 0;  // the rate of a copy
};

/// Gradients that an offloaded optimizer waits for, and passes over memory that stand for backward().
class Offloading {
 public:
  Offloading(std::size_t count, double seconds)
      : bytes_(count * sizeof(float)),
        seconds_(seconds),
        values_(DeviceBuffer::create(bytes_).value()),
        gradients_(DeviceBuffer::create(bytes_).value()),
        link_(cuda::make_link(*runtime_, {.trainer_stream = [this] { return trainer_.native(); }}).value()),
        transfer_(link_->open(bytes_)),
        pageable_(bytes_) {
    cuda::clear_async(trainer_, values_.floats()).value();
    cuda::clear_async(trainer_, gradients_.floats()).value();
    trainer_.synchronize().value();
  }

  /// Milliseconds of the passes and of the gradients' way, and how much of that way the passes hide.
  nlohmann::json all() {
    const auto nothing = [](std::size_t, std::size_t) {};
    const double backward = milliseconds([&] { work(nothing); });
    const double pageable = milliseconds([&] {
      work(nothing);
      trainer_.download_async(gradients_.bytes().data(), pageable_).value();
    });
    const double at_step = milliseconds([&] {
      work(nothing);
      leave(0, bytes_);
    });
    const double early = milliseconds([&] { work([this](std::size_t at, std::size_t size) { leave(at, size); }); });
    return {{"unit", "ms"},         {"backward", backward},    {"then_pageable_copy", pageable},
            {"then_link", at_step}, {"link_meanwhile", early}, {"hidden_share", hidden(backward, at_step, early)},
            {"goal", kOverlapGoal}};
  }

 private:
  static constexpr std::size_t kBucket = std::size_t{16} << 20;  // bytes, in which a model's gradients leave
  static constexpr int kPasses = 40;                             // over each bucket: about the time that its copy takes

  static double hidden(double backward, double at_step, double early) {
    return at_step > backward ? std::clamp((at_step - early) / (at_step - backward), 0.0, 1.0) : 1.0;
  }
  /// Queues the passes, and calls `complete` for each bucket whose passes are queued.
  void work(const std::function<void(std::size_t at, std::size_t size)>& complete) {
    for (std::size_t at = 0; at < bytes_; at += kBucket) {
      const std::size_t size = std::min(kBucket, bytes_ - at), first = at / sizeof(float);
      const auto values = values_.floats().subspan(first, size / sizeof(float));
      const auto gradients = gradients_.floats().subspan(first, size / sizeof(float));
      for (int i = 0; i < kPasses; ++i) cuda::add_async(trainer_, values, 0.5f, gradients).value();
      complete(at, size);
    }
  }
  void leave(std::size_t at, std::size_t size) {
    link_->sync_with_caller_stream();
    transfer_->follow_trainer();
    transfer_->download(gradients_.bytes().data() + at, transfer_->memory().subspan(at, size));
  }
  double milliseconds(const std::function<void()>& queue) {
    const double gigabytes = rate(bytes_, seconds_, [&] {
      queue();
      trainer_.synchronize().value();
      transfer_->wait();
    });
    return static_cast<double>(bytes_) / gigabytes / 1e6;
  }

  const std::unique_ptr<Runtime> runtime_ = make_runtime();
  Stream trainer_ = Stream::create().value();
  const std::size_t bytes_;
  const double seconds_;
  const DeviceBuffer values_, gradients_;
  const std::shared_ptr<train::DeviceLink> link_;
  const std::unique_ptr<train::Transfer> transfer_;
  Bytes pageable_;
};

}  // namespace

nlohmann::json cuda_kernels(std::size_t values, double seconds) {
  Device device(values, seconds);
  nlohmann::json result{{"benchmark", "cuda"},
                        {"values", values},
                        {"unit", "GB of float32 per second, and the share of a copy's bandwidth"}};
  result["copy"] = device.copy();
  for (const codec::CodecInfo& info : codec::all_codecs())
    if (cuda::can_encode(info.codec)) result["codecs"][std::string(info.name)] = device.codec(info);
  result["sums"] = device.sums();
  result["steps_of_parameters"] = device.steps();
  for (const auto codec : {codec::Codec::float16, codec::Codec::blockwise8})
    result["reducing_ms"][std::string(name_of(codec))] = device.reducing(codec);
  result["gradients_to_host"] = Offloading(values, seconds).all();
  return result;
}

nlohmann::json cuda(const Settings& settings) {
  if (const auto devices = cuda::device_count(); !devices)
    throw tools::Exit{tools::kBadInput, devices.error().message()};
  auto result = cuda_kernels(settings.megabytes * 1'000'000 / sizeof(float), settings.seconds / 8);
#ifdef COHIVE_BENCH_STEPS
  result["steps"] = steps({torch::kCUDA, 0}, {.seconds = settings.seconds, .megabytes = settings.megabytes});
#else
  result["steps"] = "this program is built without LibTorch's CUDA half";
#endif
  return result;
}
#else

nlohmann::json cuda(const Settings&) {
  throw tools::Exit{tools::kBadInput, "no usable GPU: this program was built without CUDA"};
}
#endif

}  // namespace cohive::bench
