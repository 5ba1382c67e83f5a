// Log lines: one per event whatever a peer sent, and JSON that parses.
#include "cohive/core/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "cohive/core/errors.hpp"

namespace cohive::log {
namespace {

class LogLines : public ::testing::Test {
 protected:
  void TearDown() override { configure({}); }

  static std::string written(Format format, std::string_view message) {
    configure({.level = Level::info, .format = format});
    ::testing::internal::CaptureStderr();
    info("test", "{}", message);
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST(Quoted, EscapesLineEndsTerminalCodesAndQuotes) {
  EXPECT_EQ(quoted("plain"), "\"plain\"");
  EXPECT_EQ(quoted("a\nb\r\t"), "\"a\\x0ab\\x0d\\x09\"");
  EXPECT_EQ(quoted("\x1b[31mred"), "\"\\x1b[31mred\"");
  EXPECT_EQ(quoted("say \"hi\" \\"), "\"say \\\"hi\\\" \\\\\"");
  EXPECT_EQ(quoted("\xc3\xa9\x7f"), "\"\\xc3\\xa9\\x7f\"");
  EXPECT_EQ(quoted(std::string_view("\0", 1)), "\"\\x00\"");
}

TEST(Quoted, CutsLongText) {
  EXPECT_EQ(quoted("abcdef", 3), "\"abc...\"");
  EXPECT_EQ(quoted("abc", 3), "\"abc\"");
  EXPECT_LT(log::quoted(std::string(1'000'000, '\n')).size(), 1000u);
}

TEST_F(LogLines, TextHasTimeLevelModuleAndMessage) {
  EXPECT_THAT(written(Format::text, "hello"),
              ::testing::MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+.[0-9]+Z info  test: hello\n"));
}

TEST_F(LogLines, TextStaysOneLineWithoutTerminalCodes) {
  const std::string line = written(Format::text, "one\ntwo\r\x1b[2Jthree \xc3\xa9");
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_NE(line.find("one\\x0atwo\\x0d\\x1b[2Jthree \xc3\xa9"), std::string::npos) << line;
}

TEST_F(LogLines, JsonParsesWhateverTheMessageHolds) {
  for (const std::string& message :
       {std::string("plain"), std::string("a\"b\\c\nd\x1b{}"), std::string("bad \xff utf-8")}) {
    const std::string line = written(Format::json, message);
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["level"], "info");
    EXPECT_EQ(json["module"], "test");
    EXPECT_TRUE(json["time"].get<std::string>().ends_with("Z"));
    if (message.find('\xff') == std::string::npos) EXPECT_EQ(json["message"], message);
  }
}

TEST_F(LogLines, LevelsBelowTheConfiguredOneAreSilent) {
  configure({.level = Level::warn});
  ::testing::internal::CaptureStderr();
  info("test", "quiet");
  write(Level::info, "test", "quiet");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(enabled(Level::error));
  configure({.level = Level::off});
  EXPECT_FALSE(enabled(Level::error));
}

TEST(LogOptions, AreReadByName) {
  EXPECT_EQ(level_from_text("trace"), Level::trace);
  EXPECT_EQ(level_from_text("off"), Level::off);
  EXPECT_FALSE(level_from_text("LOUD"));
  EXPECT_EQ(format_from_text("json"), Format::json);
  EXPECT_FALSE(format_from_text("xml"));
}

TEST(LogFormatting, PrintsPeersAndErrors) {
  const auto peer = *PeerId::from_text("12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq");
  EXPECT_EQ(log::format("{}", peer), peer.text());
  const Error error(Errc::timeout, peer, "dial");
  EXPECT_EQ(log::format("{}", error), error.message());
}

TEST(LogFormatting, TakesSpecificationsAsStdFormatDoes) {
  EXPECT_EQ(log::format("{:.3f} {:8.2f} {:+} {:g} {:e}", 3.14159, 2.5, 1.5f, 1e20, 12.5),
            "3.142     2.50 +1.5 1e+20 1.250000e+01");
  EXPECT_EQ(log::format("{:>5}|{:<5}|{:*^7}|{:05}|{:#x}", 42, -1, 7u, 12, 255), "   42|-1   |***7***|00012|0xff");
  EXPECT_EQ(log::format("{:>6}|{:.2}|{:_<4}", "text", std::string("shorter"), std::string_view("a")), "  text|sh|a___");
  EXPECT_EQ(log::format("{} {} {}", true, 'c', "{}"), "true c {}");
  EXPECT_EQ(log::format("{{{}}}", 1), "{1}");
}

TEST(LogFormatting, KeepsTheWholeRangeOfIntegers) {
  EXPECT_EQ(log::format("{} {}", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::uint64_t>::max()),
            "-9223372036854775808 18446744073709551615");
  EXPECT_EQ(log::format("{} {}", static_cast<std::uint8_t>(200), static_cast<short>(-3)), "200 -3");
}

}  // namespace
}  // namespace cohive::log

// A program's own type, printed through a function that argument-dependent lookup finds.
namespace program {
struct Batch {
  int number;
};
std::string log_text(const Batch& batch) {
  return "batch " + std::to_string(batch.number);
}
}  // namespace program

namespace cohive::log {
namespace {

TEST(LogFormatting, PrintsTypesOfTheProgramsOwn) {
  EXPECT_EQ(log::format("{} done, {:>9}", program::Batch{3}, program::Batch{12}), "batch 3 done,  batch 12");
}

template <class T>
concept CanBePrinted = requires(const T& value) { log::format("{}", value); };
static_assert(CanBePrinted<program::Batch> && CanBePrinted<const char*> && CanBePrinted<double>);
static_assert(!CanBePrinted<std::vector<int>> && !CanBePrinted<void*>);

}  // namespace
}  // namespace cohive::log
