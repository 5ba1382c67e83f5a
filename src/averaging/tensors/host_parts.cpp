#include "cohive/averaging/host_parts.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <utility>

#include "averaging/detail/lease.hpp"
#include "averaging/detail/part_math.hpp"
#include "averaging/detail/stretch_set.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kFinishedAtOnce = 128 * 1024;  // values: half a part of the usual size stays in a core's cache
constexpr std::size_t kMostFinishers = 16;           // threads

}  // namespace

ResidualsPtr make_residuals(std::span<const TensorInfo> tensors, float kept) {
  auto residuals = std::make_shared<std::vector<codec::Residuals>>();
  for (const auto& tensor : tensors) residuals->emplace_back(tensor.elements(), kept);
  return residuals;
}

// ---- The memory, as work on any thread uses it

class HostMemory {
 public:
  HostMemory(std::vector<TensorInfo> infos, std::vector<TensorSpan> tensors, HostPartsOptions options)
      : infos_(std::move(infos)),
        tensors_(std::move(tensors)),
        options_(std::move(options)),
        scaled_(infos_.size()),
        final_(infos_.size()) {
    bool fits =
        infos_.size() == tensors_.size() && (!options_.residuals || options_.residuals->size() == infos_.size());
    for (std::size_t i = 0; fits && i < infos_.size(); ++i)
      fits = tensors_[i].read.size() == infos_[i].elements() && tensors_[i].write.size() == infos_[i].elements();
    if (!fits) throw std::invalid_argument("host memory that does not fit the tensors of a round");
  }

  const std::vector<TensorInfo>& infos() const noexcept { return infos_; }
  bool keeps_residuals() const noexcept { return options_.residuals != nullptr; }
  const AnswerResidualsPtr& answers() const noexcept { return options_.answers; }
  double density_factor() const noexcept { return options_.density_factor; }
  std::size_t averaged() const noexcept { return averaged_; }

  /// What is owed of a stretch that travels in this codec; null: nothing ever is.
  codec::Residuals* residuals(const Stretch& stretch, codec::Codec codec) const {
    const bool fed_back = options_.residuals && codec::info(codec).error_feedback;
    return fed_back ? &(*options_.residuals)[stretch.tensor] : nullptr;
  }

  /// The stretch's values. The first use of each applies the factor.
  std::span<const float> own(const Stretch& stretch) {
    const auto values = tensors_[stretch.tensor].read.subspan(stretch.offset, stretch.length);
    if (options_.factor != 1)
      for (const Stretch& fresh : scaled_.claim(stretch))
        scale(tensors_[fresh.tensor].read.subspan(fresh.offset, fresh.length), options_.factor);
    return values;
  }

  Result<EncodedStretch> encode(const Stretch& stretch, codec::CodecSpec codec) {
    const auto values = own(stretch);
    if (codec.codec == codec::Codec::none) {
      if (!all_finite(values)) return Error(Errc::not_finite);
      return EncodedStretch{raw_bytes(values)};
    }
    std::optional<Slice> encoded;
    if (const auto* owed = residuals(stretch, codec.codec)) {
      std::vector<float> corrected(values.size());
      owed->correct(stretch.offset, values, corrected);
      encoded = codec::encode_finite(codec, corrected);
    } else {
      encoded = codec::encode_finite(codec, values);
    }
    if (!encoded) return Error(Errc::not_finite);
    const auto owner = std::make_shared<const Slice>(std::move(*encoded));
    return EncodedStretch{owner->view(), owner};
  }

  Result<> apply(const Stretch& stretch, const Answer& answer, Terms terms) {
    const auto values = own(stretch);
    const auto decoder = open_finite(*answer.part, stretch.length);
    if (!decoder) return decoder.error();
    if (answer.sent && terms.weight > 0)
      if (auto noted = note_delivery(stretch, *answer.sent, values); !noted) return noted;
    const auto alpha = static_cast<float>(terms.alpha);
    if (answer.form == Answer::Form::difference)
      add_difference(**decoder, alpha, destination(stretch));
    else
      move_to(**decoder, alpha, destination(stretch));
    finished(stretch, true);
    return ok();
  }

  /// The average of a part that was reduced here, with our own values as the last ones added.
  void apply_last(const Stretch& stretch, std::span<const float> average, double alpha) {
    move_towards(average, static_cast<float>(alpha), destination(stretch));
    finished(stretch, true);
  }

  /// All that has no result, in portions.
  std::vector<Stretch> rest() const {
    std::vector<Stretch> portions;
    for (std::size_t i = 0; i < infos_.size(); ++i)
      for (const Stretch& gap : final_.missing({i, 0, tensors_[i].read.size()}))
        for (std::size_t done = 0; done < gap.length; done += kFinishedAtOnce)
          portions.push_back({i, gap.offset + done, std::min(kFinishedAtOnce, gap.length - done)});
    return portions;
  }

  void keep(const Stretch& portion) {
    for (const Stretch& stretch : final_.missing(portion)) {
      const auto values = own(stretch);
      const auto to = destination(stretch);
      if (options_.differences)
        std::ranges::fill(to.out, 0.0f);
      else if (to.out.data() != values.data())
        std::ranges::copy(values, to.out.begin());
      finished(stretch, false);
    }
  }

 private:
  Destination destination(const Stretch& stretch) const {
    const TensorSpan& tensor = tensors_[stretch.tensor];
    return {tensor.read.subspan(stretch.offset, stretch.length), tensor.write.subspan(stretch.offset, stretch.length),
            options_.differences};
  }

  Result<> note_delivery(const Stretch& stretch, const Answer::Sent& sent, std::span<const float> values) {
    if (!options_.residuals) return ok();
    codec::Residuals& residuals = (*options_.residuals)[stretch.tensor];
    if (sent.codec != codec::Codec::none)
      return residuals.commit(sent.codec, stretch.offset, values, sent.encoded.bytes);
    residuals.clear(stretch.offset, stretch.length);
    return ok();
  }

  void finished(const Stretch& stretch, bool averaged) {
    if (final_.claim(stretch).empty()) return;
    if (averaged) averaged_ += stretch.length;
    if (options_.on_result) options_.on_result({stretch, averaged});
  }

  std::vector<TensorInfo> infos_;
  std::vector<TensorSpan> tensors_;
  HostPartsOptions options_;
  StretchSet scaled_, final_;
  std::atomic<std::size_t> averaged_ = 0;
};

// ---- Our own contribution to a part

namespace {

class OwnValues final : public OwnContribution {
 public:
  OwnValues(std::shared_ptr<HostMemory> memory, Stretch stretch, codec::CodecSpec codec, Terms terms)
      : memory_(std::move(memory)), stretch_(stretch), codec_(codec.codec), terms_(terms) {}

  bool applied() const noexcept override { return applied_; }
  void revoke() noexcept override { lease_->end(); }

  Result<bool> add(std::span<float> sum, Adding how) override {
    Result<bool> outcome = lease_ended();
    lease_->use([&] {
      const auto values = memory_->own(stretch_);
      if (const auto* owed = memory_->residuals(stretch_, codec_)) {
        std::vector<float> corrected(values.size());
        owed->correct(stretch_.offset, values, corrected);
        return void(outcome = add_values(corrected, terms_.weight, sum, how));
      }
      outcome = add_values(values, terms_.weight, sum, how);
      // While all of it is in the cache. Before any value moves it must be known that the whole part has an average:
      // without one no member's do.
      if (!outcome || !*outcome || how.divisor == 0) return;
      memory_->apply_last(stretch_, sum, terms_.alpha);
      applied_ = true;
    });
    return outcome;
  }

  Result<ReadValues> open() override {
    // Whatever asks for values later may outlive this object, but not the lease.
    ReadValues read = [memory = memory_, stretch = stretch_, codec = codec_, lease = lease_](std::size_t first,
                                                                                             std::span<float> out) {
      return lease->use([&] {
        const auto values = memory->own(stretch).subspan(first, out.size());
        if (const auto* owed = memory->residuals(stretch, codec))
          owed->correct(stretch.offset + first, values, out);
        else
          std::ranges::copy(values, out.begin());
      });
    };
    std::vector<float> values(stretch_.length);
    if (!read(0, values)) return lease_ended();
    if (!all_finite(values)) return Error(Errc::not_finite);
    return read;
  }

 private:
  const std::shared_ptr<HostMemory> memory_;
  const Stretch stretch_;
  const codec::Codec codec_;
  const Terms terms_;
  const std::shared_ptr<Lease> lease_ = std::make_shared<Lease>();
  std::atomic<bool> applied_ = false;
};

/// One of several that finish portions at once.
Task<void> finish_portions(Runtime& runtime, std::shared_ptr<HostMemory> memory, const std::vector<Stretch>& portions,
                           std::size_t& next) {
  while (next < portions.size()) {
    auto work = [memory, portion = portions[next++]]() -> Result<> {
      memory->keep(portion);
      return ok();
    };
    (void)co_await offload_leased(runtime, std::move(work));
  }
}

}  // namespace

// ---- The operations

HostParts::HostParts(Runtime& runtime, std::vector<TensorInfo> infos, std::vector<TensorSpan> memory,
                     HostPartsOptions options)
    : runtime_(runtime),
      memory_(std::make_shared<HostMemory>(std::move(infos), std::move(memory), std::move(options))) {}
HostParts::~HostParts() = default;

const std::vector<TensorInfo>& HostParts::infos() const noexcept {
  return memory_->infos();
}
bool HostParts::keeps_residuals() const noexcept {
  return memory_->keeps_residuals();
}
double HostParts::density_factor() const noexcept {
  return memory_->density_factor();
}

AnswerResidualsPtr HostParts::answer_residuals() const {
  return memory_->answers();
}
std::size_t HostParts::averaged() const noexcept {
  return memory_->averaged();
}

Task<Result<EncodedStretch>> HostParts::encode(Stretch stretch, codec::CodecSpec codec) {
  if (codec.codec == codec::Codec::none) co_return memory_->encode(stretch, codec);  // hardly more than a look at it
  auto work = [memory = memory_, stretch, codec] { return memory->encode(stretch, codec); };
  co_return co_await work_on_values(runtime_, stretch.length, std::move(work));
}

Task<Result<std::shared_ptr<OwnContribution>>> HostParts::contribute(Stretch stretch, codec::CodecSpec codec,
                                                                     Terms terms) {
  co_return std::make_shared<OwnValues>(memory_, stretch, codec, terms);
}

Task<Result<>> HostParts::apply(Stretch stretch, Answer answer, Terms terms) {
  auto work = [memory = memory_, stretch, answer = std::move(answer), terms] {
    return memory->apply(stretch, answer, terms);
  };
  co_return co_await work_on_values(runtime_, stretch.length, std::move(work));
}

Task<void> HostParts::finish() {
  const auto portions = memory_->rest();
  if (portions.size() <= 1) {
    for (const Stretch& portion : portions) memory_->keep(portion);
    co_return;
  }
  std::size_t next = 0;
  const std::size_t threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostFinishers);
  std::vector<Task<void>> workers;
  for (std::size_t i = 0; i < std::min(threads, portions.size()); ++i)
    workers.push_back(finish_portions(runtime_, memory_, portions, next));
  co_await when_all(runtime_, std::move(workers));
}

// ---- Tensors of several

JoinedParts::JoinedParts(std::vector<Source> sources) : sources_(std::move(sources)) {
  for (const Source& source : sources_) infos_.push_back(source.parts->infos().at(source.tensor));
}

std::shared_ptr<JoinedParts> JoinedParts::owning(std::vector<std::shared_ptr<TensorParts>> all) {
  std::vector<Source> sources;
  for (const auto& parts : all)
    for (std::size_t i = 0; i < parts->infos().size(); ++i) sources.push_back({parts.get(), i});
  auto joined = std::make_shared<JoinedParts>(std::move(sources));
  joined->owned_ = std::move(all);
  return joined;
}

Task<Result<EncodedStretch>> JoinedParts::encode(Stretch stretch, codec::CodecSpec codec) {
  const Source& source = sources_.at(stretch.tensor);
  co_return co_await source.parts->encode({source.tensor, stretch.offset, stretch.length}, codec);
}

Task<Result<std::shared_ptr<OwnContribution>>> JoinedParts::contribute(Stretch stretch, codec::CodecSpec codec,
                                                                       Terms terms) {
  const Source& source = sources_.at(stretch.tensor);
  co_return co_await source.parts->contribute({source.tensor, stretch.offset, stretch.length}, codec, terms);
}

Task<Result<>> JoinedParts::apply(Stretch stretch, Answer answer, Terms terms) {
  const Source& source = sources_.at(stretch.tensor);
  co_return co_await source.parts->apply({source.tensor, stretch.offset, stretch.length}, std::move(answer), terms);
}

std::unique_ptr<FactoredTensor> JoinedParts::factored(std::size_t tensor, FactorForm form, codec::Residuals& owed) {
  const Source& source = sources_.at(tensor);
  return source.parts->factored(source.tensor, form, owed);
}

Task<void> JoinedParts::finish() {
  for (const auto& parts : owned_) co_await parts->finish();
}

}  // namespace cohive::averaging
