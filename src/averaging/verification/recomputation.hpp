// An average that is made again from what its reducer shows, and compared with what the reducer had answered. Runs on
// any thread, one call at a time. Source: docs/wire/extensions.md, section 12.
#pragma once

#include <optional>
#include <vector>

#include "averaging/schemes/robust.hpp"
#include "transcript.hpp"

namespace cohive::averaging {

/// What a member sent of a part and was answered.
struct AnsweredPart {
  EncodedStretch sent;
  codec::Codec sent_codec = codec::Codec::none;
  std::size_t length = 0;
  std::shared_ptr<const EncodedPart> answer;  ///< null: there is no average
  Answer::Form form = Answer::Form::difference;
};

/// Squared lengths of what this member sent of a part, and of the average that it was answered; 0 where there is none.
struct PartLengths {
  double sent = 0, average = 0;
};
/// Errors: as of decoding.
Result<PartLengths> lengths_of(const AnsweredPart& part);
/// How many times as long as what this member sent the average is; infinity where it sent nothing but zeros. Errors: as
/// of decoding.
Result<double> norm_ratio(const AnsweredPart& part);

class Recomputation {
 public:
  Recomputation(Aggregation how, Transcript transcript, std::size_t length);

  const Transcript& transcript() const { return transcript_; }
  /// The next contribution of the transcript. Errors: malformed where its bytes are not those of the entry, or its
  /// weight cannot be; those of values that no reducer can have added.
  Result<> add(EncodedPart contribution);
  /// When all have been added: whether the average is the one that was answered. Codecs and processors round
  /// differently; an answer may be off by what its codec loses of the right one, and a little more. Where it was
  /// answered that there is none: whether there is none that every codec can hold.
  Result<bool> agrees_with(const AnsweredPart& part);

 private:
  Result<> add_to_sum(const EncodedPart& contribution, double weight);
  Result<Slice> expected_answer(const AnsweredPart& part) const;

  const Aggregation how_;
  const Transcript transcript_;
  std::vector<float> values_;  // the sum, then the average
  std::vector<Vote> votes_;    // for aggregates that need all at once
  std::size_t added_ = 0;
  double total_ = 0;
  double magnitudes_ = 0;  // of what was added to the sum, as it weighs: no partial sum is larger
  bool has_average_ = false;
};

}  // namespace cohive::averaging
