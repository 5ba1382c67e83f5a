// A trace: events that a viewer takes, a bound, and nothing where nobody has asked for it.
#include "cohive/core/trace.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cohive/core/errors.hpp"
#include "cohive/core/log_output.hpp"
#include "cohive/core/sim_runtime.hpp"

namespace cohive {
namespace {

struct TraceFileTest : ::testing::Test {
  ~TraceFileTest() override { std::filesystem::remove(path); }
  nlohmann::json content() {
    std::ifstream file(path);
    return nlohmann::json::parse(file);
  }
  static Task<void> work(Runtime& runtime, std::string peer) {
    TraceSpan span(runtime, "dial", "dial");
    if (span) span.note("peer", peer);
    span.note("bytes", 12.0);
    co_await runtime.sleep_for(2s);
  }
  SimRuntime runtime{1};
  // Tests may run at the same time.
  const std::string path = ::testing::TempDir() + "/trace-" + std::to_string(::getpid()) + ".json";
};

TEST_F(TraceFileTest, HoldsWhatWentOnBetweenItsBeginAndItsEnd) {
  ASSERT_TRUE(Trace::of(runtime).start(path, "peer \"a\""));
  EXPECT_EQ(Trace::of(runtime).start(path, "again").error(), Errc::in_use);
  const double begin = runtime.wall_time();
  runtime.run(work(runtime, "\"<b>\xff"));
  Trace::of(runtime).stop();
  runtime.run(work(runtime, "later"));
  const auto events = content();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["args"]["name"], "peer \"a\"");
  EXPECT_EQ(events[1]["ph"], "b");
  EXPECT_EQ(events[2]["ph"], "e");
  EXPECT_EQ(events[1]["id"], events[2]["id"]);
  EXPECT_EQ(events[1]["name"], "dial");
  EXPECT_EQ(events[1]["args"]["bytes"], 12);
  EXPECT_TRUE(events[1]["args"]["peer"].get<std::string>().starts_with("\"<b>"));
  EXPECT_NEAR(events[1]["ts"].get<double>(), begin * 1e6, 1);
  EXPECT_NEAR(events[2]["ts"].get<double>() - events[1]["ts"].get<double>(), 2e6, 1);
}

TEST_F(TraceFileTest, ADiskThatIsFullEndsItWithASentence) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no device that is always full";
  ASSERT_TRUE(Trace::of(runtime).start("/dev/full", "peer"));
  ::testing::internal::CaptureStderr();
  runtime.run(work(runtime, "a"));
  EXPECT_TRUE(log::flush());
  EXPECT_NE(
      ::testing::internal::GetCapturedStderr().find("the trace /dev/full cannot be written: No space left on device"),
      std::string::npos);
  EXPECT_FALSE(Trace::of(runtime).on());
}

TEST_F(TraceFileTest, EndsWhenTheFileIsFull) {
  ASSERT_TRUE(Trace::of(runtime).start(path, "peer", 10'000));
  for (int i = 0; i < 100; ++i) runtime.run(work(runtime, std::string(100, 'x')));
  EXPECT_FALSE(Trace::of(runtime).on());
  runtime.run_for(1ms);
  EXPECT_GT(std::filesystem::file_size(path), 10'000u);
  EXPECT_LT(std::filesystem::file_size(path), 11'000u);
  EXPECT_GT(content().size(), 20u) << "it is whole all the same";
}

TEST_F(TraceFileTest, AProcessThatIsKilledLeavesWhatItDidUntilThen) {
  ASSERT_TRUE(Trace::of(runtime).start(path, "peer"));
  runtime.run(work(runtime, "a"));
  runtime.run_for(1s);
  std::ifstream file(path);
  std::string line;
  int lines = 0;
  while (std::getline(file, line)) ++lines;
  EXPECT_EQ(lines, 4) << "the bracket, the name of the process, begin and end";
}

TEST_F(TraceFileTest, NothingIsWrittenUnlessAskedFor) {
  runtime.run(work(runtime, "a"));
  EXPECT_FALSE(Trace::any());
  const auto refused = Trace::of(runtime).start("/no/such/folder/trace", "peer");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("/no/such/folder/trace cannot be written"), std::string::npos);
}

}  // namespace
}  // namespace cohive
