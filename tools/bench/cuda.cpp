// The kernels of the codecs on a GPU, and those that add up, in gigabytes of float32 per second, beside a plain copy of
// the same data within its memory. The bandwidth of that memory is what the copy reads and writes.
// Last, how long gradients of that size take to the host beside work that stands for a backward pass.
#include "bench/bench.hpp"
#include "common/program.hpp"
#ifdef COHIVE_BENCH_CUDA
#include <algorithm>
#include <random>

#include "cohive/cuda/backend.hpp"
#include "cohive/cuda/codec.hpp"
#include "cohive/cuda/errors.hpp"
#endif

namespace cohive::bench {
#ifdef COHIVE_BENCH_CUDA
namespace {

using cuda::DeviceBuffer;
using cuda::Stream;

constexpr int kAtOnce = 8;  // queued together: what a launch costs the host is hidden behind the one before

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
    return measured([&] { return cuda::copy_async(stream_, values_.floats(), out_.floats()); });
  }

  nlohmann::json codec(const codec::CodecInfo& info) {
    const std::size_t size = *cuda::encoded_size(info.codec, count_);
    const auto scratch = DeviceBuffer::create(cuda::scratch_size(info.codec, count_)).value();
    const auto encoded = DeviceBuffer::create(size).value();
    cuda::EncodeMemory memory{.scratch = scratch.bytes()};
    const auto encode = [&] {
      return cuda::encode_async(stream_, info.codec, values_.floats(), encoded.bytes(), memory);
    };
    nlohmann::json row{{"bytes", size}, {"encode", measured(encode)}};
    if (info.error_feedback) {
      memory.owed = memory.left = left_.floats();
      row["encode_with_feedback"] = measured(encode);
      cuda::clear_async(stream_, left_.floats()).value();
    }
    row["decode"] = measured([&] { return cuda::decode_async(stream_, info.codec, encoded.bytes(), out_.floats()); });
    row["accumulate"] =
        measured([&] { return cuda::accumulate_async(stream_, info.codec, encoded.bytes(), 0.5f, out_.floats()); });
    return row;
  }

  nlohmann::json sums() {
    const auto flag = DeviceBuffer::create(sizeof(std::uint32_t)).value();
    auto* const found = reinterpret_cast<std::uint32_t*>(flag.bytes().data());
    const auto values = values_.floats(), out = out_.floats();
    return {{"add", measured([&] { return cuda::add_async(stream_, values, 0.5f, out); })},
            {"scale", measured([&] { return cuda::scale_async(stream_, out, 1.0f); })},
            {"find_non_finite", measured([&] { return cuda::find_non_finite_async(stream_, values, found); })}};
  }

 private:
  static DeviceBuffer floats(std::size_t count) { return DeviceBuffer::create(count * sizeof(float)).value(); }

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
            {"then_link", at_step}, {"link_meanwhile", early}, {"hidden_share", hidden(backward, at_step, early)}};
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
    link_->note_trainer();
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

nlohmann::json cuda(const Settings& settings) {
  if (const auto devices = cuda::device_count(); !devices)
    throw tools::Exit{tools::kBadInput, devices.error().message()};
  Device device(settings.megabytes * 1'000'000 / sizeof(float), settings.seconds / 8);
  nlohmann::json result{{"benchmark", "cuda"}, {"megabytes", settings.megabytes}, {"unit", "GB of float32 per second"}};
  result["copy"] = device.copy();
  for (const codec::CodecInfo& info : codec::all_codecs())
    result["codecs"][std::string(info.name)] = device.codec(info);
  result["sums"] = device.sums();
  result["offload"] = Offloading(settings.megabytes * 1'000'000 / sizeof(float), settings.seconds / 8).all();
  return result;
}
#else

nlohmann::json cuda(const Settings&) {
  throw tools::Exit{tools::kBadInput, "no usable GPU: this program was built without CUDA"};
}
#endif

}  // namespace cohive::bench
