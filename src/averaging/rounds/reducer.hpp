// The reducer of our parts: each part is averaged once every active sender has contributed. A few parts are open at a
// time, so memory stays bounded and a fast sender can run a little ahead of a slow one. For the mean contributions are
// added up as they come; for other aggregates they are kept until all are there.
// Source: docs/wire/hivemind.md, sections 6.7 and 6.8.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "averaging/detail/part_math.hpp"
#include "averaging/schemes/robust.hpp"
#include "cohive/averaging/answer_residuals.hpp"
#include "cohive/core/result.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive::averaging {

/// How the average of a part is encoded.
struct AnswerCodec {
  codec::CodecSpec spec;
  AnswerResidualsPtr residuals = nullptr;  ///< of what earlier averages lost; null: nobody keeps them
  Stretch stretch{};                       ///< which values of the tensors these are
};

/// One part: its sum while senders contribute, then its average.
class PartSum {
 public:
  PartSum(Runtime& runtime, std::size_t length)
      : finished(runtime, "the other senders' parts"),
        memory_(Slice::uninitialised(length * sizeof(float))),
        values_(reinterpret_cast<float*>(memory_.mutable_data())),
        length_(length) {}
  PartSum(const PartSum&) = delete;

  std::size_t length() const { return length_; }
  std::span<float> values() { return {values_, length_}; }
  /// Empty when there is none: no sender's weight counted, or the sum overflowed. Members keep their values then.
  std::span<const float> average() const { return {values_, has_average ? length_ : 0}; }

  /// The memory of the average, which stays as it is once finished.
  Slice bytes() const { return memory_; }
  /// Encodes the average, in place of which all members take what that decodes to. An average that the codec cannot
  /// hold is none.
  void encode(const AnswerCodec& codec);

  Event finished;
  std::shared_ptr<const EncodedPart> encoded;  ///< the average, where it was to be encoded and there is one
  bool has_average = false;
  double weight = 0;                 ///< of all senders that contributed; senders lost before do not count
  std::vector<std::size_t> senders;  ///< of these, in the order in which they were added

 private:
  Slice memory_;
  float* values_;
  std::size_t length_;
};
using PartSumPtr = std::shared_ptr<PartSum>;

class Reducer {
 public:
  /// \param own  the sender that is added last, when all others have been: its values are at hand at any time
  /// \param codecs  of the averages, of each part or empty: none is encoded
  Reducer(Runtime& runtime, std::vector<std::size_t> part_lengths, std::size_t senders, std::size_t own,
          Aggregation aggregation = Mean(), std::vector<AnswerCodec> codecs = {});

  /// Waits until part `index` is open, then until the values were added or opened. Each sender contributes its parts in
  /// order. Errors: whatever the contribution reports, and then the caller bans the sender; round_cancelled when it was
  /// banned meanwhile.
  Task<Result<PartSumPtr>> contribute(std::size_t sender, std::size_t index, double weight,
                                      std::shared_ptr<Contribution> values);
  /// Waits for the average of a part; null: it was there, and the call only tells whether the round is cancelled.
  Task<Result<>> wait_for(PartSumPtr part);
  /// Waits until all parts are finished, or cancel().
  Task<void> wait_for_all();
  /// Leaves a sender out of what it has not contributed to yet. What it has added stays.
  void ban(std::size_t sender);
  bool banned(std::size_t sender) const { return !active_.contains(sender); }
  /// What holds the others up.
  struct Awaited {
    std::size_t part = 0;             ///< the first one that is not averaged
    std::set<std::size_t> senders{};  ///< that it waits for; this peer is none of them
    std::optional<TimePoint> since;   ///< when another sender began to wait for its average; none does
  };
  Awaited awaited() const;
  bool finished() const { return current_ == lengths_.size(); }
  void cancel();

 private:
  struct Ticket {
    explicit Ticket(Runtime& runtime) : done(runtime, "its part to be added") {}
    Event done;
    Result<> outcome;
  };
  struct Waiting {
    std::size_t sender;
    double weight;
    std::shared_ptr<Contribution> values;
    std::shared_ptr<Ticket> ticket;
  };
  struct OpenPart {
    PartSumPtr sum;
    std::optional<AnswerCodec> codec;          // of the average
    std::shared_ptr<std::vector<Vote>> votes;  // unless the mean is wanted; the job that is busy has them
    std::vector<Waiting> waiting;
    std::set<std::size_t> contributed;
    std::size_t missing = 0;          // active senders that have not contributed
    std::optional<TimePoint> wanted;  // since when another peer waits for the average
    bool busy = false;                // a job works on the sum
    bool empty = true;                // nothing has been added
    bool averaged = false;
  };
  using OpenPtr = std::shared_ptr<OpenPart>;
  /// What a job did.
  struct Outcome {
    std::vector<Result<>> added;
    double weight = 0;  ///< of all senders that have contributed
    bool empty = true;
    bool averaged = false, has_average = false;
  };

  static Outcome add_up(PartSum& sum, const std::vector<Waiting>& batch, bool last, Outcome before);
  static Outcome collect(const Aggregation& how, PartSum& sum, std::vector<Vote>& votes,
                         const std::vector<Waiting>& batch, bool last, Outcome before);
  static Task<void> work_on(Reducer& self, OpenPtr part);
  bool complete(const OpenPart& part, const std::vector<Waiting>& batch, bool but_own) const;
  std::vector<Waiting> next_batch(OpenPart& part) const;
  bool can_work_on(const OpenPart& part) const;
  void open_parts();
  void close_parts();
  void look_at(const OpenPtr& part);

  Runtime& runtime_;
  std::vector<std::size_t> lengths_;
  const std::size_t own_;
  const Aggregation aggregation_;
  const std::vector<AnswerCodec> codecs_;
  std::size_t most_open_;
  std::deque<OpenPtr> open_;  // parts current_, current_ + 1, ...
  std::set<std::size_t> active_;
  std::size_t current_ = 0;  // the first part that is not averaged
  TimePoint current_since_;
  bool cancelled_ = false;
  Condition changed_;
  TaskGroup jobs_;
};

}  // namespace cohive::averaging
