// Log lines: one per event whatever a peer sent, JSON that parses, and outputs that keep nobody waiting.
#include "cohive/core/log_output.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "cohive/core/errors.hpp"
#include "cohive/core/on_exit.hpp"

namespace cohive::log {
namespace {

class LogLines : public ::testing::Test {
 protected:
  void TearDown() override {
    configure({});
    set_output({});
  }

  /// What stderr gets while `body` runs.
  template <class F>
  static std::string captured(F body) {
    ::testing::internal::CaptureStderr();
    body();
    EXPECT_TRUE(flush());
    return ::testing::internal::GetCapturedStderr();
  }
  static std::string written(Format format, std::string_view message) {
    configure({.level = Level::info, .format = format});
    return captured([&] { info("test", "{}", message); });
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

TEST_F(LogLines, TextHasNoControlCharactersBeyondAsciiAndNoBytesThatAreNoText) {
  const std::string line = written(Format::text, "\x9b 2J \xc2\x9b 2J \xff \xe2\x80 \xe2\x82\xac \xf0\x9f\x90\x9d");
  EXPECT_NE(line.find("\\x9b 2J \\xc2\\x9b 2J \\xff \\xe2\\x80 \xe2\x82\xac \xf0\x9f\x90\x9d"), std::string::npos)
      << line;
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
  set_output({.recent_lines = 0});
  configure({.level = Level::warn});
  const std::string lines = captured([] {
    info("test", "quiet");
    write(Level::info, "test", "quiet");
  });
  EXPECT_EQ(lines, "");
  EXPECT_TRUE(enabled(Level::error));
  configure({.level = Level::off});
  EXPECT_FALSE(enabled(Level::error));
}

TEST_F(LogLines, ModulesHaveLevelsOfTheirOwn) {
  Options options;
  Output output;
  ASSERT_TRUE(set_levels(options, output, "warn,averaging=debug,dht=off"));
  configure(options);
  set_output(output);
  const std::string lines = captured([] {
    debug("averaging", "seen");
    info("p2p", "unseen");
    warn("p2p", "a warning");
    error("dht", "unseen");
  });
  EXPECT_THAT(lines,
              ::testing::AllOf(::testing::HasSubstr("debug averaging: seen"), ::testing::HasSubstr("a warning")));
  EXPECT_EQ(lines.find("unseen"), lines.npos);
}

TEST(LogOptions, LevelsOfModulesAreReadFromOneText) {
  Options options;
  Output output;
  EXPECT_TRUE(set_levels(options, output, "dht=trace"));
  EXPECT_EQ(options.level, Level::info);
  EXPECT_THAT(output.modules, ::testing::ElementsAre(std::pair("dht", Level::trace)));
  EXPECT_TRUE(set_levels(options, output, "error"));
  EXPECT_EQ(options.level, Level::error);
  EXPECT_TRUE(output.modules.empty());
  for (const char* bad : {"", "loud", "info,", ",info", "info,debug", "dht=", "=debug", "dht=loud", "dht"})
    EXPECT_FALSE(set_levels(options, output, bad)) << bad;
  EXPECT_EQ(options.level, Level::error);
}

TEST_F(LogLines, FieldsAreInJsonAndLeaveTextAlone) {
  const auto peer = *PeerId::from_text("12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq");
  const auto line = [&](Format format) {
    configure({.level = Level::info, .format = format});
    return captured([&] {
      write(Level::warn, "train", {{"peer", peer}, {"cause", "timeout"}, {"seconds", 1.5}, {"level", "forged"}},
            "no state");
    });
  };
  EXPECT_TRUE(line(Format::text).ends_with(" warn  train: no state\n"));
  const auto json = nlohmann::json::parse(line(Format::json));
  EXPECT_EQ(json["peer"], peer.text());
  EXPECT_EQ(json["cause"], "timeout");
  EXPECT_EQ(json["seconds"], 1.5);
  EXPECT_EQ(json["level"], "warn");
}

TEST_F(LogLines, TheLastOnesAreKeptWhateverTheirLevel) {
  configure({.level = Level::error});
  set_output({.recent_lines = 3});
  const std::string lines = captured([] {
    for (int i = 0; i < 5; ++i) debug("test", "line {}", i);
    info("test", "{}", std::string(10'000, 'x'));
  });
  EXPECT_EQ(lines, "");
  const auto kept = recent();
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_TRUE(kept[0].ends_with("debug test: line 3"));
  EXPECT_TRUE(kept[1].ends_with("debug test: line 4"));
  EXPECT_LT(kept[2].size(), 600u);
  set_output({.recent_lines = 1});
  EXPECT_EQ(recent().size(), 1u);
}

TEST_F(LogLines, WhatAUserAsksForIsWrittenWhateverTheLevel) {
  configure({.level = Level::error});
  const auto before = recent();
  EXPECT_TRUE(captured([] { write_always("tasks", "one"); }).ends_with("info  tasks: one\n"));
  EXPECT_EQ(recent(), before);
}

TEST_F(LogLines, ColorsAreForTerminals) {
  EXPECT_EQ(written(Format::text, "plain").find('\x1b'), std::string::npos);
  set_output({.color = Color::always});
  EXPECT_NE(written(Format::text, "colored").find("\x1b[32minfo "), std::string::npos);
  EXPECT_EQ(written(Format::json, "plain").find('\x1b'), std::string::npos);
}

TEST_F(LogLines, TheJournalGetsPriorities) {
  ::testing::internal::CaptureStderr();  // stderr is another stream from here on
  struct stat status{};
  ASSERT_EQ(::fstat(STDERR_FILENO, &status), 0);
  ::setenv("JOURNAL_STREAM", log::format("{}:{}", status.st_dev, status.st_ino).c_str(), 1);
  const auto unset = on_exit([] { ::unsetenv("JOURNAL_STREAM"); });
  set_output({});
  info("test", "one");
  error("test", "two");
  EXPECT_TRUE(flush());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "<6>test: one\n<3>test: two\n");
  ::setenv("JOURNAL_STREAM", "1:1", 1);
  set_output({});
  EXPECT_TRUE(written(Format::text, "elsewhere").ends_with("info  test: elsewhere\n"));
}

/// A folder that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = ::testing::TempDir() + "cohive_log_XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(LogLines, GoToAFileTooWhichIsReplacedWhenItIsFull) {
  const Folder folder;
  set_output({.color = Color::always, .file = folder.path / "run.log", .file_bytes = 1000, .old_files = 2});
  const std::string both = captured([] { info("test", "first"); });
  EXPECT_NE(both.find("first"), std::string::npos);
  const std::string text = contents(folder.path / "run.log");
  EXPECT_TRUE(text.ends_with("info  test: first\n"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  captured([] {
    for (int i = 0; i < 100; ++i) info("test", "{}", std::string(100, 'x'));
  });
  EXPECT_LE(std::filesystem::file_size(folder.path / "run.log"), 1000u);
  EXPECT_TRUE(std::filesystem::exists(folder.path / "run.2.log"));
  EXPECT_FALSE(std::filesystem::exists(folder.path / "run.3.log"));
  EXPECT_THROW(set_output({.file = folder.path}), ErrorException);
}

// A reader that has stopped: a pipe takes 64 KiB, the log 4 MiB more, and the program goes on.
TEST_F(LogLines, AStoppedReaderLosesLinesAndStopsNobody) {
  constexpr int kLines = 100'000;  // 20 MB
  configure({});
  ASSERT_TRUE(flush());
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const int before = ::dup(STDERR_FILENO);
  ASSERT_EQ(::dup2(pipe[1], STDERR_FILENO), STDERR_FILENO);
  ::close(pipe[1]);
  const std::uint64_t dropped_before = dropped_lines();
  for (int i = 0; i < kLines; ++i) info("flood", "{:08} {}", i, std::string(150, 'x'));  // nobody reads meanwhile
  EXPECT_FALSE(flush(std::chrono::milliseconds(0)));
  const std::uint64_t dropped = dropped_lines() - dropped_before;
  EXPECT_GT(dropped, 0u);

  std::string text;
  std::thread reader([&] {
    char chunk[65536];
    for (ssize_t count; (count = ::read(pipe[0], chunk, sizeof chunk)) > 0;)
      text.append(chunk, static_cast<std::size_t>(count));
  });
  EXPECT_TRUE(flush(std::chrono::minutes(1)));
  ::dup2(before, STDERR_FILENO);  // the pipe's last writer: the reader sees its end
  ::close(before);
  reader.join();
  ::close(pipe[0]);
  const auto written = static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  std::uint64_t reports = 0, reported = 0;
  const std::regex report("log: ([0-9]+) lines are missing here");
  for (auto at = std::sregex_iterator(text.begin(), text.end(), report); at != std::sregex_iterator(); ++at, ++reports)
    reported += std::stoull((*at)[1]);
  EXPECT_EQ(reported, dropped);
  EXPECT_EQ(written + dropped, kLines + reports) << "all lines but those dropped, and those that say so";
  EXPECT_NE(text.find(log::format("{:08} ", kLines - 1)), std::string::npos) << "the newest are kept";
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
