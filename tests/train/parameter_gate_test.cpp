// Who may write the live parameters, and who waits: all orders of what can happen at the gate, without a loop; then the
// same from two threads, and coroutines that wait.
#include "train/parameter_gate.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive::train {
namespace {

StepReport report_of(std::uint64_t epoch) {
  StepReport report;
  report.epoch = epoch;
  return report;
}

/// What may be done next, in all orders.
enum class Act { offer, publish, end_publication, hold, release };
constexpr Act kActs[] = {Act::offer, Act::publish, Act::end_publication, Act::hold, Act::release};
constexpr int kDepth = 9;

/// A gate, and what is to be expected of it by its description alone.
struct World {
  ParameterGate gate;
  std::vector<ParameterGate::Hold> holds;
  std::optional<ParameterGate::Publication> publication;
  bool offered = false;
  std::uint64_t epoch = 0;  // of the last offer
  std::size_t told_to_wait = 0, woken = 0;

  bool possible(Act act) const {
    switch (act) {
      case Act::offer:
        return !offered && !publication;
      case Act::end_publication:
        return publication.has_value();
      case Act::release:
        return !holds.empty();
      default:
        return true;
    }
  }
  void do_it(Act act) {
    const auto wake = [this] { ++woken; };
    switch (act) {
      case Act::offer:
        gate.offer(report_of(++epoch));
        offered = true;
        break;
      case Act::publish: {
        auto begun = gate.publish(wake);
        ASSERT_EQ(begun.has_value(), offered && holds.empty() && !publication);
        if (begun) {
          EXPECT_EQ(begun->report().epoch, epoch);
          publication.emplace(std::move(*begun));
          offered = false;
        } else if (offered) {
          ++told_to_wait;
        }
        break;
      }
      case Act::end_publication:
        publication.reset();
        expect_all_woken();
        break;
      case Act::hold: {
        auto held = gate.hold(wake);
        ASSERT_EQ(held.has_value(), !publication);
        if (held)
          holds.push_back(std::move(*held));
        else
          ++told_to_wait;
        break;
      }
      case Act::release:
        holds.pop_back();
        if (holds.empty()) expect_all_woken();
        break;
    }
    EXPECT_EQ(gate.offered(), offered);
    EXPECT_TRUE(!publication || holds.empty()) << "parameters change while they are copied";
  }
  void expect_all_woken() const {
    EXPECT_EQ(woken, told_to_wait) << "nobody waits for what is free, nobody is woken twice";
  }
};

/// Goes through all continuations of a history. A gate has no copy, so that each history begins anew.
std::size_t try_all(std::vector<Act>& history) {
  World world;
  for (const Act act : history) world.do_it(act);
  if (history.size() == kDepth || testing::Test::HasFailure()) return 1;
  std::size_t tried = 1;
  for (const Act act : kActs) {
    if (!world.possible(act)) continue;
    history.push_back(act);
    tried += try_all(history);
    history.pop_back();
  }
  return tried;
}

TEST(ParameterGate, KeepsItsPromisesInAllOrders) {
  std::vector<Act> history;
  EXPECT_GT(try_all(history), 10'000u);
}

TEST(ParameterGate, WhoeverHasNothingToPublishIsNotWokenForIt) {
  ParameterGate gate;
  bool woken = false;
  {
    const auto held = gate.hold();
    EXPECT_FALSE(gate.publish([&] { woken = true; })) << "nothing is offered";
  }
  EXPECT_FALSE(woken);
}

TEST(ParameterGate, AFailedPublicationUsesTheOfferUp) {
  ParameterGate gate;
  gate.offer(report_of(1));
  try {
    const auto publication = gate.publish();
    throw std::runtime_error("a device has failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(gate.offered());
  EXPECT_TRUE(gate.hold()) << "copies are possible again";
}

/// Two numbers that only a publication changes, which are equal whenever a copy may look.
TEST(ParameterGate, ThreadsNeverCopyWhatIsBeingWritten) {
  constexpr std::uint64_t kEpochs = 20'000;
  ParameterGate gate;
  std::uint64_t parameters[2] = {};
  std::atomic<bool> ended = false, copied = false;
  std::jthread trainer([&] {
    for (std::uint64_t epoch = 1; epoch <= kEpochs || !copied;) {
      if (!gate.offered()) gate.offer(report_of(epoch));
      const auto publication = gate.publish();
      if (!publication) continue;
      EXPECT_EQ(publication->report().epoch, epoch);
      for (auto& parameter : parameters) parameter = epoch;
      ++epoch;
    }
    ended = true;
  });
  std::uint64_t latest = 0;
  while (!ended) {
    std::atomic<bool> woken = false;
    const auto held = gate.hold([&woken] {
      woken = true;
      woken.notify_one();
    });
    if (!held) {
      woken.wait(false);
      continue;
    }
    ASSERT_EQ(parameters[0], parameters[1]);
    ASSERT_GE(parameters[0], latest);
    latest = parameters[0];
    copied = true;
  }
}

/// Coroutines wait for one another at the gate, and for no clock.
TEST(ParameterGate, CoroutinesWaitWithoutPolls) {
  SimRuntime runtime(1);
  ParameterGate gate;
  TaskGroup tasks(runtime, "test");
  gate.offer(report_of(7));
  std::vector<std::string> seen;
  {
    const auto held = gate.hold();
    tasks.spawn(
        [](Runtime& loop, ParameterGate& of, std::vector<std::string>& events) -> Task<void> {
          const auto publication = co_await of.publish(loop);
          events.push_back("published " + std::to_string(publication->report().epoch));
        }(runtime, gate, seen),
        "publication");
    runtime.run_for(1s);
    EXPECT_TRUE(seen.empty());
    seen.push_back("copied");
  }
  runtime.run_ready();
  EXPECT_EQ(seen, (std::vector<std::string>{"copied", "published 7"}));

  gate.offer(report_of(8));
  {
    const auto publication = gate.publish();
    ASSERT_TRUE(publication);
    tasks.spawn(
        [](Runtime& loop, ParameterGate& of, std::vector<std::string>& events) -> Task<void> {
          const auto held = co_await of.hold(loop);
          events.push_back("held");
        }(runtime, gate, seen),
        "copy");
    runtime.run_for(1s);
    EXPECT_EQ(seen.size(), 2u);
  }
  runtime.run_ready();
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_FALSE(gate.offered());
}

TEST(ParameterGate, ADroppedWaitLeavesTheGateAsItIs) {
  SimRuntime runtime(1);
  ParameterGate gate;
  gate.offer(report_of(1));
  {
    const auto held = gate.hold();
    TaskGroup tasks(runtime, "test");
    tasks.spawn([](Runtime& loop, ParameterGate& of) -> Task<void> { (void)co_await of.publish(loop); }(runtime, gate),
                "publication");
    runtime.run_ready();
    tasks.cancel();
  }
  runtime.run_ready();
  EXPECT_TRUE(gate.offered()) << "the task that waited is gone, and has published nothing";
}

}  // namespace
}  // namespace cohive::train
