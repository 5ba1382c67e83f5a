#include "cohive/averaging/relative_parts.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "averaging/detail/lease.hpp"
#include "averaging/detail/part_math.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kDecodedAtOnce = 4096;  // values, which stay in the nearest cache

std::span<float> common_part(CommonState& common, const Stretch& stretch) {
  return std::span(common.values[stretch.tensor]).subspan(stretch.offset, stretch.length);
}

/// This member's values of a part that it reduces, less what all members have in common.
class OwnDifferences final : public OwnContribution {
 public:
  OwnDifferences(std::shared_ptr<OwnContribution> own, std::shared_ptr<CommonState> common, Stretch stretch,
                 double weight)
      : own_(std::move(own)), common_(std::move(common)), stretch_(stretch), weight_(weight) {}

  bool applied() const noexcept override { return false; }
  void revoke() noexcept override {
    lease_->end();
    own_->revoke();
  }

  Result<bool> add(std::span<float> sum, Adding how) override {
    TRY(const auto values, all());
    return add_values(values, weight_, sum, how);
  }
  Result<ReadValues> open() override {
    TRY(auto read, own_->open());
    return ReadValues([read = std::move(read), common = common_, stretch = stretch_, lease = lease_](
                          std::size_t first, std::span<float> out) {
      bool there = false;
      lease->use([&] {
        there = read(first, out);
        const auto base = common_part(*common, stretch).subspan(first, out.size());
        if (there) std::ranges::transform(out, base, out.begin(), std::minus());
      });
      return there;
    });
  }
  Result<std::vector<float>> all() {
    TRY(const auto read, open());
    std::vector<float> values(stretch_.length);
    if (!read(0, values)) return lease_ended();
    return values;
  }

 private:
  const std::shared_ptr<OwnContribution> own_;
  const std::shared_ptr<CommonState> common_;
  const Stretch stretch_;
  const double weight_;
  const std::shared_ptr<Lease> lease_ = std::make_shared<Lease>();
};

Result<EncodedStretch> encode_values(codec::CodecSpec codec, std::span<const float> values) {
  auto encoded = codec::encode_finite(codec, values);
  if (!encoded) return Error(Errc::not_finite);
  const auto owner = std::make_shared<const Slice>(std::move(*encoded));
  return EncodedStretch{owner->view(), owner};
}

/// Makes a stretch of the common state what an average says. All members do it by the same operations on the same bits.
Result<> renew(CommonState& common, const Stretch& stretch, const EncodedPart& average) {
  TRY(const auto decoder, open_finite(average, stretch.length));
  const auto values = common_part(common, stretch);
  if (!common.relative) {
    decoder->decode(0, values);
    return ok();
  }
  std::array<float, kDecodedAtOnce> block;
  for (std::size_t at = 0; at < values.size(); at += block.size()) {
    const auto some = values.subspan(at, std::min(block.size(), values.size() - at));
    const auto decoded = std::span(block).first(some.size());
    decoder->decode(at, decoded);
    std::ranges::transform(some, decoded, some.begin(), std::plus());
  }
  return ok();
}

/// A stretch of the common state as the answer of a reducer, without a copy.
std::shared_ptr<const EncodedPart> as_answer(std::shared_ptr<CommonState> common, const Stretch& stretch) {
  struct Kept {
    std::shared_ptr<CommonState> common;
    EncodedPart part;
  };
  const ByteView bytes = raw_bytes(common_part(*common, stretch));
  auto kept = std::make_shared<const Kept>(std::move(common),
                                           EncodedPart{codec::Codec::none, codec::DType::float32, {}, bytes});
  return {kept, &kept->part};
}

}  // namespace

CommonState::CommonState(std::span<const TensorInfo> tensors) {
  for (const auto& tensor : tensors) values.emplace_back(tensor.elements());
}

bool CommonState::is_whole() const {
  return renewed == std::accumulate(values.begin(), values.end(), std::size_t{0},
                                    [](std::size_t sum, const auto& tensor) { return sum + tensor.size(); });
}

RelativeParts::RelativeParts(Runtime& runtime, std::shared_ptr<TensorParts> parts, std::shared_ptr<CommonState> common)
    : runtime_(runtime), parts_(std::move(parts)), common_(std::move(common)) {
  common_->renewed = 0;
}

Task<Result<EncodedStretch>> RelativeParts::encode(Stretch stretch, codec::CodecSpec codec) {
  if (!common_->relative) co_return co_await parts_->encode(stretch, codec);
  CO_TRY(auto values, co_await parts_->contribute(stretch, codec::Codec::none, Terms()));
  const auto own = std::make_shared<OwnDifferences>(std::move(values), common_, stretch, 1);
  const auto revoke = on_exit([&own] { own->revoke(); });
  co_return co_await work_on_values(runtime_, stretch.length, [own, codec]() -> Result<EncodedStretch> {
    TRY(const auto differences, own->all());
    return encode_values(codec, differences);
  });
}

Task<Result<std::shared_ptr<OwnContribution>>> RelativeParts::contribute(Stretch stretch, codec::CodecSpec codec,
                                                                         Terms terms) {
  if (!common_->relative) co_return co_await parts_->contribute(stretch, codec, terms);
  CO_TRY(auto values, co_await parts_->contribute(stretch, codec::Codec::none, terms));
  co_return std::make_shared<OwnDifferences>(std::move(values), common_, stretch, terms.weight);
}

/// A part that is answered with what the average differs by from what was sent is the same part either way.
Task<Result<>> RelativeParts::apply(Stretch stretch, Answer answer, Terms terms) {
  if (answer.form == Answer::Form::difference) co_return co_await parts_->apply(stretch, std::move(answer), terms);
  common_->checksum = 0;
  CO_TRY(co_await work_on_values(runtime_, stretch.length, [common = common_, stretch, part = answer.part] {
    return renew(*common, stretch, *part);
  }));
  CO_TRY(co_await parts_->apply(stretch, {Answer::Form::average, as_answer(common_, stretch), std::nullopt}, terms));
  common_->renewed += stretch.length;
  co_return ok();
}

Scheme relative_all_reduce(std::shared_ptr<const CommonState> common) {
  return [common = std::move(common)](RoundContext& round) {
    return round.all_reduce(round.tensors(), common->relative ? "DIFFERENCES" : "");
  };
}

}  // namespace cohive::averaging
