// ParameterGate: who may write the live parameters of a run, and who waits. The loop prepares the next parameters and
// offers them; the trainer publishes them between two batches, or the loop does while the trainer waits for it; copies
// of the state, for newcomers and checkpoints, read both and hold the gate meanwhile.
//
//   empty --offer()--> offered --publish()--> publishing --end of the Publication--> empty
//   empty, offered --hold()--> the same, held by one copy more --end of the Hold--> the same
//
// Nothing is published while the gate is held, and no copy begins while something is being published: both are told by
// an empty answer, and called back at the next change if they want to wait. Thread-safe: nobody blocks in it.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cohive/core/runtime.hpp"
#include "cohive/train/step_report.hpp"

namespace cohive::train {

class ParameterGate {
 public:
  ParameterGate() = default;
  ParameterGate(const ParameterGate&) = delete;
  /// No Hold or Publication is left.
  ~ParameterGate();

  /// Keeps publications away for as long as it lives.
  class [[nodiscard]] Hold {
   public:
    explicit Hold(ParameterGate& gate) : gate_(&gate) {}
    Hold(Hold&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    ~Hold() {
      if (gate_) gate_->release();
    }

   private:
    ParameterGate* gate_;
  };

  /// The right to write the live parameters, for as long as it lives. Its end means that the offer has been used up,
  /// also where an exception ends it: half of the parameters may be live then.
  class [[nodiscard]] Publication {
   public:
    Publication(ParameterGate& gate, StepReport report) : gate_(&gate), report_(std::move(report)) {}
    Publication(Publication&& other) noexcept
        : gate_(std::exchange(other.gate_, nullptr)), report_(std::move(other.report_)) {}
    ~Publication() {
      if (gate_) gate_->end_publication();
    }
    /// Tells of the work that the parameters come from, as it was offered.
    const StepReport& report() const noexcept { return report_; }

   private:
    ParameterGate* gate_;
    StepReport report_;
  };

  /// Called once, without locks, on the thread that changes the gate. It may come for nothing: ask again.
  using Wake = std::function<void()>;

  /// Offers the next parameters, which are complete. None have been offered that were not published.
  void offer(StepReport report);
  /// Tells whether parameters are offered that nobody has begun to publish.
  bool offered() const;
  /// Returns the right to publish what is offered; nullopt where nothing is, or the gate is held.
  /// \param otherwise  called when a gate that was held is held no longer; not where nothing is offered
  std::optional<Publication> publish(Wake otherwise = nullptr);
  /// Holds the gate; nullopt while something is being published. \param otherwise  called at the end of that
  std::optional<Hold> hold(Wake otherwise = nullptr);

  /// The same two for coroutines of a loop, which wait until they may. Cancellation: leaves the gate as it is.
  Task<Hold> hold(Runtime& runtime);
  /// Returns nullopt where nothing is offered.
  Task<std::optional<Publication>> publish(Runtime& runtime);

 private:
  enum class State { empty, offered, publishing };
  void release();
  void end_publication();

  mutable std::mutex mutex_;
  State state_ = State::empty;
  int holds_ = 0;     // none while publishing
  StepReport offer_;  // while offered
  std::vector<Wake> waiting_;
};

}  // namespace cohive::train
