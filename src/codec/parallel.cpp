#include "cohive/codec/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#include "cohive/core/task_group.hpp"
#include "whole_tensor.hpp"

namespace cohive::codec {
namespace {

/// Done in place up to here: under half a millisecond in every codec.
constexpr std::size_t kInPlace = std::size_t{1} << 15;
/// The pool serves others too.
constexpr std::size_t kMostThreads = 8;

/// One phase of some work, that several threads take steps of.
class Phase {
 public:
  Phase(std::shared_ptr<Steps> work, int phase, std::size_t steps, std::size_t threads)
      : work_(std::move(work)), phase_(phase), steps_(steps), busy_(threads) {}

  void take_steps() {
    for (std::size_t step; !stopped_ && (step = next_++) < steps_;) work_->run(phase_, step);
    if (--busy_ == 0 && !stopped_) work_->settle(phase_);
  }
  void stop() { stopped_ = true; }

 private:
  std::shared_ptr<Steps> work_;
  int phase_;
  std::size_t steps_;
  std::atomic<std::size_t> next_ = 0, busy_;
  std::atomic<bool> stopped_ = false;
};

Task<void> take_steps(Runtime& runtime, std::shared_ptr<Phase> phase) {
  co_await runtime.offload([phase] { phase->take_steps(); });
}

Task<void> run_phase(Runtime& runtime, std::shared_ptr<Steps> work, int phase) {
  struct Abandon {
    std::shared_ptr<Phase> phase;
    ~Abandon() { phase->stop(); }
  };
  static const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t steps = work->steps(phase), threads = std::min({steps, cores, kMostThreads});
  Abandon shared{std::make_shared<Phase>(std::move(work), phase, steps, threads)};
  if (threads == 1) {
    co_await take_steps(runtime, shared.phase);
    co_return;
  }
  Nursery helpers(runtime, "codec");
  for (std::size_t i = 0; i < threads; ++i) helpers.spawn(take_steps(runtime, shared.phase), "codec");
  co_await helpers.join();
}

Task<void> run_steps(Runtime& runtime, std::shared_ptr<Steps> work) {
  for (int phase = 0; work->steps(phase) > 0; ++phase) co_await run_phase(runtime, work, phase);
}

/// Decodes into memory that `owner` keeps, as does the buffer it reads.
class Decoding final : public Steps {
 public:
  enum class Into { values, sum, bytes };
  Decoding(const Decoder& decoder, Slice buffer, Into into, std::shared_ptr<const void> owner, void* out, float weight)
      : decoder_(decoder),
        buffer_(std::move(buffer)),
        into_(into),
        owner_(std::move(owner)),
        out_(out),
        weight_(weight) {}

  std::size_t steps(int phase) const override { return phase == 0 ? (decoder_.size() + kSegment - 1) / kSegment : 0; }

  void run(int, std::size_t step) override {
    const std::size_t first = step * kSegment, count = std::min(kSegment, decoder_.size() - first);
    const std::span<float> values(static_cast<float*>(out_) + first, into_ == Into::bytes ? 0 : count);
    switch (into_) {
      case Into::values:
        return decoder_.decode(first, values);
      case Into::sum:
        return decoder_.accumulate(first, weight_, values);
      case Into::bytes:
        return decoder_.decode_bytes(first, count, static_cast<std::uint8_t*>(out_) + first * decoder_.value_size());
    }
  }

 private:
  Decoder decoder_;
  Slice buffer_;
  Into into_;
  std::shared_ptr<const void> owner_;
  void* out_;
  float weight_;
};

/// An encoder and what its values live in.
class Encoding final : public Steps {
 public:
  template <class... Owners>
  explicit Encoding(std::unique_ptr<Encoder> encoder, Owners... owners)
      : encoder_(std::move(encoder)), owners_{std::make_shared<Owners>(std::move(owners))...} {}
  std::size_t steps(int phase) const override { return encoder_->steps(phase); }
  void run(int phase, std::size_t step) override { encoder_->run(phase, step); }
  void settle(int phase) override { encoder_->settle(phase); }
  Slice take() { return encoder_->take(); }

 private:
  std::unique_ptr<Encoder> encoder_;
  std::vector<std::shared_ptr<const void>> owners_;
};

Task<Slice> run_encoding(Runtime& runtime, std::shared_ptr<Encoding> encoding) {
  co_await run_steps(runtime, encoding);
  co_return encoding->take();
}

Task<Result<>> run_decoding(Runtime& runtime, Codec codec, DType dtype, Slice buffer, Decoding::Into into, float weight,
                            SharedOutput out) {
  // Looking at a buffer takes time too: every index and scale is checked.
  auto decoder = co_await runtime.offload(
      [codec, dtype, buffer, count = out.values.size()] { return Decoder::open(codec, dtype, count, buffer); });
  if (!decoder) co_return decoder.error();
  co_await run_steps(runtime, std::make_shared<Decoding>(*decoder, std::move(buffer), into, std::move(out.owner),
                                                         out.values.data(), weight));
  co_return ok();
}

}  // namespace

Task<Slice> encode(Runtime& runtime, Codec codec, SharedValues values) {
  if (values.values.size() <= kInPlace) co_return encode(codec, values.values);
  auto encoder = make_encoder(codec, Values(values.values), 1, values.values.size());
  co_return co_await run_encoding(runtime, std::make_shared<Encoding>(std::move(encoder), std::move(values.owner)));
}

Task<Slice> encode_difference(Runtime& runtime, Codec codec, SharedValues average, SharedValues base) {
  if (average.values.size() <= kInPlace) co_return encode_difference(codec, average.values, base.values);
  auto encoder = make_encoder(codec, Values::difference(average.values, base.values), 1, average.values.size());
  co_return co_await run_encoding(
      runtime, std::make_shared<Encoding>(std::move(encoder), std::move(average.owner), std::move(base.owner)));
}

Task<Result<>> decode(Runtime& runtime, Codec codec, DType dtype, Slice buffer, SharedOutput out) {
  if (out.values.size() <= kInPlace) co_return decode(codec, dtype, buffer, out.values);
  co_return co_await run_decoding(runtime, codec, dtype, std::move(buffer), Decoding::Into::values, 1, std::move(out));
}

Task<Result<>> decode_and_accumulate(Runtime& runtime, Codec codec, DType dtype, Slice buffer, float weight,
                                     SharedOutput accumulator) {
  if (accumulator.values.size() <= kInPlace)
    co_return decode_and_accumulate(codec, dtype, buffer, weight, accumulator.values);
  co_return co_await run_decoding(runtime, codec, dtype, std::move(buffer), Decoding::Into::sum, weight,
                                  std::move(accumulator));
}

Task<Result<Slice>> encode_tensor(Runtime& runtime, Codec codec, Tensor tensor) {
  if (tensor.data.size() <= kInPlace * 4) co_return encode_tensor(codec, tensor);
  auto encoder = tensor_encoder(codec, tensor);
  if (!encoder) co_return encoder.error();
  if (!*encoder) co_return tensor.data;
  co_return co_await run_encoding(runtime, std::make_shared<Encoding>(std::move(*encoder), std::move(tensor)));
}

Task<Result<Tensor>> decode_tensor(Runtime& runtime, Codec codec, DType dtype, Shape shape, bool requires_grad,
                                   Slice buffer) {
  if (buffer.size() <= kInPlace) co_return decode_tensor(codec, dtype, std::move(shape), requires_grad, buffer);
  auto opened = co_await runtime.offload([codec, dtype, shape = std::move(shape), requires_grad, buffer]() mutable {
    return open_tensor(codec, dtype, std::move(shape), requires_grad, buffer);
  });
  if (!opened) co_return opened.error();
  if (opened->decoder) {
    std::uint8_t* out = opened->tensor.data.mutable_data();
    auto memory = std::make_shared<Slice>(opened->tensor.data);
    co_await run_steps(runtime, std::make_shared<Decoding>(*opened->decoder, std::move(buffer), Decoding::Into::bytes,
                                                           std::move(memory), out, 1.0f));
  }
  co_return std::move(opened->tensor);
}

}  // namespace cohive::codec
