#include "recomputation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "averaging/detail/part_math.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/try.hpp"

namespace cohive::averaging {
namespace {

constexpr double kRounding = 4e-7;   // of a value, for each contribution: processors that fuse operations differ
constexpr double kCodecLosses = 2;   // a value at the edge of a bin goes into either
constexpr float kHeldByAll = 65504;  // the largest float16: an average with more may be one that its codec cannot hold

/// How far apart two lists of values are.
struct Distance {
  double squares = 0, most = 0;
  void add(double difference) {
    squares += difference * difference;
    most = std::max(most, std::abs(difference));
  }
};

Result<std::vector<float>> values_of(const EncodedPart& part, std::size_t length) {
  TRY(const auto decoder, open_finite(part, length));
  std::vector<float> values(length);
  decoder->decode(0, values);
  return values;
}

Result<double> largest_of(const EncodedPart& part, std::size_t length) {
  TRY(const auto values, values_of(part, length));
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  return static_cast<double>(most);
}

EncodedPart sent_part(const AnsweredPart& part) {
  EncodedPart sent;
  sent.codec = part.sent_codec;
  sent.buffer = part.sent.bytes;
  return sent;
}

}  // namespace

Result<PartLengths> lengths_of(const AnsweredPart& part) {
  TRY(const auto sent, values_of(sent_part(part), part.length));
  PartLengths squares;
  for (const float value : sent) squares.sent += static_cast<double>(value) * static_cast<double>(value);
  if (!part.answer) return squares;
  TRY(const auto average, values_of(*part.answer, part.length));
  for (std::size_t i = 0; i < part.length; ++i) {
    const double own = part.form == Answer::Form::difference ? static_cast<double>(sent[i]) : 0;
    const double value = static_cast<double>(average[i]) + own;
    squares.average += value * value;
  }
  return squares;
}

Result<double> norm_ratio(const AnsweredPart& part) {
  TRY(const PartLengths squares, lengths_of(part));
  if (squares.average == 0) return 0.0;
  return squares.sent > 0 ? std::sqrt(squares.average / squares.sent) : std::numeric_limits<double>::infinity();
}

Recomputation::Recomputation(Aggregation how, Transcript transcript, std::size_t length)
    : how_(std::move(how)), transcript_(std::move(transcript)), values_(length) {
  for (const TranscriptEntry& entry : transcript_) total_ += entry.weight;
}

Result<> Recomputation::add(EncodedPart contribution) {
  if (added_ == transcript_.size()) return Error(cohive::Errc::malformed, "more contributions than were told");
  const TranscriptEntry& entry = transcript_[added_++];
  if (static_cast<int>(contribution.codec) != entry.codec || crypto::sha256(contribution.buffer) != entry.digest)
    return Error(cohive::Errc::malformed, "another contribution than the one that was told");
  if (std::holds_alternative<Mean>(how_)) return add_to_sum(contribution, entry.weight);
  TRY(auto read, open_part(std::make_shared<const EncodedPart>(std::move(contribution)), values_.size()));
  votes_.push_back({entry.sender, entry.weight, std::move(read)});
  return ok();
}

Result<> Recomputation::add_to_sum(const EncodedPart& contribution, double weight) {
  TRY(const double largest, largest_of(contribution, values_.size()));
  magnitudes_ += weight * largest;
  Adding how{added_ == 1};
  if (added_ == transcript_.size() && total_ > 0) how.divisor = total_;
  TRY(const bool finite, add_part(contribution, weight, values_, how));
  has_average_ = how.divisor > 0 && finite;
  return ok();
}

Result<Slice> Recomputation::expected_answer(const AnsweredPart& part) const {
  if (part.form == Answer::Form::average) return codec::encode(part.answer->codec, values_);
  EncodedPart sent = sent_part(part);
  return difference_to(values_, sent, values_.size());
}

Result<bool> Recomputation::agrees_with(const AnsweredPart& part) {
  if (added_ < transcript_.size()) return Error(cohive::Errc::malformed, "fewer contributions than were told");
  if (!std::holds_alternative<Mean>(how_)) has_average_ = aggregate(how_, std::exchange(votes_, {}), values_);
  const auto is_held = [](float value) { return std::abs(value) <= kHeldByAll; };
  if (!part.answer) return !has_average_ || !std::ranges::all_of(values_, is_held);
  if (!has_average_) return false;
  TRY(const Slice expected, expected_answer(part));
  if (std::ranges::equal(expected.view(), part.answer->buffer)) return true;

  EncodedPart encoded = *part.answer;
  TRY(const auto got, values_of(encoded, values_.size()));
  encoded.buffer = expected.view();
  TRY(const auto meant, values_of(encoded, values_.size()));
  TRY(const auto sent, values_of(sent_part(part), values_.size()));
  Distance off, lost;
  // What cancels out in the sum leaves its rounding there. Senders that collude with the reducer widen the tolerance by
  // rounding of what they have put in themselves, by which they could as well have moved the average, and far further.
  double magnitude = total_ > 0 ? magnitudes_ / total_ : 0;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const double own = static_cast<double>(sent[i]), average = static_cast<double>(values_[i]);
    off.add(static_cast<double>(got[i]) - static_cast<double>(meant[i]));
    lost.add(static_cast<double>(meant[i]) - (part.form == Answer::Form::difference ? average - own : average));
    magnitude = std::max({magnitude, std::abs(average), std::abs(own)});
  }
  const double rounding = kRounding * static_cast<double>(transcript_.size()) * magnitude;
  const double all = std::sqrt(static_cast<double>(values_.size()));
  return off.most <= kCodecLosses * lost.most + rounding &&
         std::sqrt(off.squares) <= kCodecLosses * std::sqrt(lost.squares) + rounding * all;
}

}  // namespace cohive::averaging
