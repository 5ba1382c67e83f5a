#include "cohive/core/log.hpp"

#include <fmt/args.h>
#include <fmt/format.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <limits>
#include <mutex>

#include "cohive/core/errors.hpp"
#include "cohive/core/log_output.hpp"
#include "log_line.hpp"
#include "log_writer.hpp"

namespace cohive::log {
namespace {

constexpr std::size_t kMaxRecentBytes = 500;  // of one line
constexpr std::chrono::milliseconds kLastFlush = std::chrono::seconds(1);

/// systemd names the device and inode of the stream that it has given to us: a redirection elsewhere is another one.
bool stderr_is_the_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status{};
  if (!stream || ::fstat(STDERR_FILENO, &status) != 0) return false;
  return stream == fmt::format("{}:{}", status.st_dev, status.st_ino);
}

bool wants_color(Color color) {
  if (color != Color::automatic) return color == Color::always;
  const char *off = std::getenv("NO_COLOR"), *terminal = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && !(off && *off) && terminal && std::string_view(terminal) != "dumb";
}

std::string formatted(const Line& line, Format format, Style style) {
  return format == Format::json ? to_json(line, style) : to_text(line, style);
}

std::string drop_report(std::uint64_t count, Format format, Style style) {
  const auto message = fmt::format("{} lines are missing here: they came faster than they were read", count);
  return formatted({std::chrono::system_clock::now(), Level::warn, "log", message, {{"lines", count}}}, format, style);
}

/// What our user has set. Threads that log meanwhile may still use the one before, which is kept.
struct Configuration {
  Configuration(Options wanted, Output where)
      : options(wanted),
        output(std::move(where)),
        style(stderr_is_the_journal()                                       ? Style::journal
              : options.format == Format::text && wants_color(output.color) ? Style::colored
                                                                            : Style::plain),
        lowest(std::min(options.level, output.recent_lines > 0 ? Level::debug : Level::off)) {
    for (const auto& [module, level] : output.modules) lowest = std::min(lowest, level);
    if (!output.file.empty()) open_file();
  }
  void open_file();
  Level level_of(std::string_view module) const {
    for (const auto& [name, level] : output.modules)
      if (name == module) return level;
    return options.level;
  }

  Options options;
  Output output;
  Style style;
  Level lowest;  // that goes anywhere
  std::unique_ptr<LineWriter> file;
  std::shared_ptr<std::atomic<bool>> file_failing = std::make_shared<std::atomic<bool>>(false);
};

/// A pipe or a device must not be renamed when it has taken so many bytes.
bool is_regular_or_new(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode);
}

/// spdlog renames files that are full. A disk that takes nothing loses lines, of which another line tells on stderr,
/// and is no reason to end the process.
void Configuration::open_file() {
  using Sink = spdlog::sinks::rotating_file_sink_st;
  std::shared_ptr<Sink> sink;
  try {
    constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
    const std::size_t most = is_regular_or_new(output.file) ? output.file_bytes : kAll;
    sink = std::make_shared<Sink>(output.file, most, output.old_files);
  } catch (const spdlog::spdlog_ex& error) {
    throw ErrorException(Error(Errc::invalid_argument, fmt::format("log file: {}", error.what())));
  }
  sink->set_pattern("%v");
  auto write = [sink, failing = file_failing](std::string_view lines) {
    try {
      while (!lines.empty()) {
        const auto end = lines.find('\n');
        sink->log({"cohive", spdlog::level::info, spdlog::string_view_t(lines.data(), end)});
        lines.remove_prefix(end + 1);
      }
      sink->flush();
      *failing = false;
    } catch (const spdlog::spdlog_ex& error) {
      if (!failing->exchange(true)) warn("log", "lines are missing in the log file: {}", error.what());
    }
  };
  auto report = [format = options.format](std::uint64_t count) { return drop_report(count, format, Style::plain); };
  file = std::make_unique<LineWriter>(std::move(write), std::move(report));
}

/// Never destroyed: other objects log while the process ends.
class Log {
 public:
  static Log& get() { return *current(); }

  /// The one before stays as it is, with locks that nobody will ever let go.
  static void restart() {
    const Configuration& before = get().configuration();
    current() = new Log(before.options, before.output);
  }

  const Configuration& configuration() const noexcept { return *current_.load(std::memory_order_acquire); }

  void configure(const Options& options, const Output& output) {
    auto made = std::make_unique<Configuration>(options, output);
    flush(kLastFlush);
    const std::lock_guard lock(mutex_);
    current_ = made.get();
    configurations_.push_back(std::move(made));
    while (recent_.size() > output.recent_lines) recent_.pop_front();
  }

  void write(const Line& line) {
    const Configuration& now = configuration();
    if (now.output.recent_lines > 0 && line.level >= Level::debug) remember(line, now.output.recent_lines);
    if (line.level >= now.level_of(line.module)) put_out(line);
  }

  void put_out(const Line& line) {
    const Configuration& now = configuration();
    if (now.output.sink)
      now.output.sink(line.level, line.module, line.message);
    else
      stderr_.push(formatted(line, now.options.format, now.style));
    if (now.file) now.file->push(formatted(line, now.options.format, Style::plain));
  }

  std::vector<std::string> recent() {
    const std::lock_guard lock(mutex_);
    return {recent_.begin(), recent_.end()};
  }

  bool flush(std::chrono::milliseconds limit) {
    const Configuration& now = configuration();
    const bool all = !now.file || now.file->flush(limit);
    return stderr_.flush(limit) && all;
  }

  bool file_failing() const { return *configuration().file_failing; }

  std::uint64_t dropped() const {
    const Configuration& now = configuration();
    return stderr_.dropped() + (now.file ? now.file->dropped() : 0);
  }

 private:
  Log(const Options& options, const Output& output)
      : stderr_(write_to_stderr, [this](std::uint64_t count) {
          return drop_report(count, configuration().options.format, configuration().style);
        }) {
    configurations_.push_back(std::make_unique<Configuration>(options, output));
    current_ = configurations_.back().get();
  }

  static std::atomic<Log*>& current() {
    static std::atomic<Log*> log = [] {
      Options options;
      Output output;
      if (const char* text = std::getenv("COHIVE_LOG_LEVEL")) set_levels(options, output, text);
      std::atexit([] { Log::get().flush(kLastFlush); });
      return new Log(options, output);
    }();
    return log;
  }

  void remember(const Line& line, std::size_t most) {
    std::string text = to_text(line, Style::plain);
    text.pop_back();
    if (text.size() > kMaxRecentBytes) text = text.substr(0, kMaxRecentBytes) + "...";
    const std::lock_guard lock(mutex_);
    if (recent_.size() >= most) recent_.pop_front();
    recent_.push_back(std::move(text));
  }

  std::atomic<const Configuration*> current_;
  std::mutex mutex_;  // of what follows, but not of the writer
  std::vector<std::unique_ptr<Configuration>> configurations_;
  std::deque<std::string> recent_;
  LineWriter stderr_;
};

}  // namespace

void configure(const Options& options) {
  Log::get().configure(options, Log::get().configuration().output);
}

void set_output(const Output& output) {
  Log::get().configure(Log::get().configuration().options, output);
}

void restart_after_fork() {
  Log::restart();
}

bool enabled(Level level) noexcept {
  return level >= Log::get().configuration().lowest;
}

std::optional<Level> level_from_text(std::string_view text) {
  for (int level = 0; level <= static_cast<int>(Level::off); ++level)
    if (name_of(static_cast<Level>(level)) == text) return static_cast<Level>(level);
  return std::nullopt;
}

std::optional<Format> format_from_text(std::string_view text) {
  if (text == "text") return Format::text;
  if (text == "json") return Format::json;
  return std::nullopt;
}

bool set_levels(Options& options, Output& output, std::string_view text) {
  std::optional<Level> general;
  std::vector<std::pair<std::string, Level>> modules;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::string_view part = text.substr(begin, text.find(',', begin) - begin);
    begin += part.size() + 1;
    const auto equals = part.find('=');
    const auto level = level_from_text(equals == part.npos ? part : part.substr(equals + 1));
    if (!level || equals == 0) return false;
    if (equals == part.npos) {
      if (general) return false;
      general = level;
    } else {
      modules.emplace_back(part.substr(0, equals), *level);
    }
  }
  if (general) options.level = *general;
  output.modules = std::move(modules);
  return true;
}

std::string quoted(std::string_view text, std::size_t limit) {
  std::string result = "\"";
  for (char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += fmt::format("\\x{:02x}", byte);
    }
  }
  result += text.size() > limit ? "...\"" : "\"";
  return result;
}

namespace detail {
std::string format(std::string_view message, std::initializer_list<Argument> arguments) {
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  const auto add = [&store](const auto& value) {
    if constexpr (std::is_same_v<decltype(value), const std::string&>) {
      store.push_back(std::string_view(value));  // not copied
    } else {
      store.push_back(value);
    }
  };
  for (const Argument& argument : arguments) std::visit(add, argument);
  return fmt::vformat(message, store);
}
}  // namespace detail

void write(Level level, std::string_view module, std::string_view message) {
  write(level, module, {}, message);
}

void write(Level level, std::string_view module, Fields fields, std::string_view message) {
  if (enabled(level)) Log::get().write({std::chrono::system_clock::now(), level, module, message, fields});
}

void write_always(std::string_view module, std::string_view message) {
  Log::get().put_out({std::chrono::system_clock::now(), Level::info, module, message, {}});
}

std::vector<std::string> recent() {
  return Log::get().recent();
}

std::uint64_t dropped_lines() {
  return Log::get().dropped();
}

bool file_failing() {
  return Log::get().file_failing();
}

bool flush(std::chrono::milliseconds limit) {
  return Log::get().flush(limit);
}

}  // namespace cohive::log
