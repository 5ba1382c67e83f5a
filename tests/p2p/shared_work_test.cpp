// Work that several callers share: it is done once, and ends with the last of them.
#include "p2p/shared_work.hpp"

#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"

namespace cohive::p2p {
namespace {

struct SharedWorks : testing::Test {
  using Make = std::function<Task<Result<int>>()>;

  static Task<void> call(SharedWorks& test, Deadline deadline, Make make) {
    test.results.push_back(co_await test.works.join(1, deadline, std::move(make)));
  }
  void call(Make make, Deadline deadline = Deadline::never()) { callers.spawn(call(*this, deadline, std::move(make))); }
  static Task<Result<int>> seven_later(SharedWorks& test) {
    ++test.made;
    co_await test.runtime.sleep_for(1s);
    co_return 7;
  }
  static Task<Result<int>> drop_callers(SharedWorks& test) {
    test.callers.cancel();
    co_await test.runtime.sleep_for(1s);
    co_return 8;
  }

  SimRuntime runtime;
  SharedWork<int, int> works{runtime, "shared work"};
  std::vector<Result<int>> results;
  int made = 0;
  TaskGroup callers{runtime};
};

TEST_F(SharedWorks, AreDoneOnceForAllCallers) {
  for (int i = 0; i < 3; ++i) call([this] { return seven_later(*this); });
  runtime.run_for(500ms);
  EXPECT_EQ(works.size(), 1u);
  runtime.run_for(1s);
  EXPECT_EQ(made, 1);
  ASSERT_EQ(results.size(), 3u);
  for (const auto& result : results) EXPECT_EQ(result.value(), 7);
  EXPECT_EQ(works.size(), 0u);
}

TEST_F(SharedWorks, EndWithTheLastCaller) {
  call([this] { return seven_later(*this); }, runtime.after(100ms));
  call([this] { return seven_later(*this); }, runtime.after(200ms));
  runtime.run_for(150ms);
  EXPECT_EQ(works.size(), 1u);
  runtime.run_for(100ms);
  EXPECT_EQ(works.size(), 0u);
  EXPECT_EQ(runtime.task_count(), 0u);
  ASSERT_EQ(results.size(), 2u);
  for (const auto& result : results) EXPECT_EQ(result.error(), cohive::Errc::timeout);
}

/// As a dial does that brings its own host down.
TEST_F(SharedWorks, EndWhenTheyDropTheirLastCallerThemselves) {
  call([this] { return drop_callers(*this); });
  runtime.run_for(2s);
  EXPECT_TRUE(results.empty());
  EXPECT_EQ(works.size(), 0u);
  EXPECT_EQ(runtime.task_count(), 0u);
  call([this] { return seven_later(*this); });
  runtime.run_for(2s);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results.front().value(), 7);
}

TEST_F(SharedWorks, ThatAreClosedTellTheirCallersWhy) {
  call([this] { return seven_later(*this); });
  runtime.run_for(500ms);
  works.close(Error(cohive::Errc::closed));
  runtime.run_for(1s);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results.front().error(), cohive::Errc::closed);
  EXPECT_EQ(works.size(), 0u);
}

}  // namespace
}  // namespace cohive::p2p
