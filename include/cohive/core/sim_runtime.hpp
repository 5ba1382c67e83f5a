/// \file
/// SimRuntime: a loop on virtual time. When nothing is ready it jumps to the next timer, so a minute of swarm time
/// passes in milliseconds, and the same seed gives the same run.
#pragma once

#include <deque>

#include "cohive/core/runtime.hpp"

namespace cohive {

/// A loop on virtual time: time passes at once when no task can run. The same seed gives the same run.
class SimRuntime final : public Runtime {
 public:
  /// Makes a loop whose clock stands still until it is run.
  explicit SimRuntime(std::uint64_t seed = 1);
  ~SimRuntime() override;

  TimePoint now() const override { return now_; }
  /// Returns the simulated Unix time in seconds.
  double wall_time() const override;
  void post(std::function<void()> function) override;
  boost::asio::io_context& io_context() override;
  bool simulated() const noexcept override { return true; }

  /// Lets virtual time pass, or everything ready run without time passing.
  void run_for(Duration duration);
  /// Runs what is ready, until nothing is; no time passes.
  void run_ready();
  /// Changes the wall clock, as a user who sets the computer's clock does; virtual time goes on as ever.
  void shift_wall_clock(Duration by) { wall_shift_ += by; }

  /// The longest turn of a loop that serves peers: all of them wait meanwhile.
  static constexpr Duration kLongestTurn = 5ms;
  /// A resumption, a posted function or timers that took long.
  struct LongTurn {
    std::string what;         ///< task and wait, and where its code is in the program: `addr2line -Cfe PROGRAM ADDRESS`
    Duration processor_time;  ///< at least; what belongs to other threads (Runtime::offload) does not count
  };
  /// Measures every turn of the runtimes that are made from now on in this process, and tells of those that take more
  /// processor time than `limit`; null: nothing is measured. On the thread of the runtime.
  static void watch_turns(std::function<void(const LongTurn&)> report, Duration limit = kLongestTurn);
  /// Tells of every task in this process, of runtimes on virtual time, that ends with an exception, which is a defect:
  /// of its group and name, and of what was thrown. Null: nobody is told. On the thread of the runtime.
  static void watch_failures(std::function<void(const std::string& task, const std::string& what)> report);

 protected:
  void on_ready() noexcept override {}
  void on_timers_changed() noexcept override {}
  void run_until(const bool& done) override;
  void start_job(std::shared_ptr<detail::OffloadJob> job) override;
  void leave_loop() noexcept override;
  void enter_loop() noexcept override;
  void on_task_failed(const std::string& task, const std::string& what) override;

 private:
  void step_ready();
  void fire_due();
  void end_turn(const Resumed* resumed, const char* what = "");
  TimePoint now_;
  Duration wall_shift_{};
  std::unique_ptr<class TurnMeter> meter_;  // null: nobody asks
  std::deque<std::function<void()>> posted_;
};

}  // namespace cohive
