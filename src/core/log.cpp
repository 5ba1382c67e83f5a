#include "cohive/core/log.hpp"

#include <fmt/args.h>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace cohive::log {
namespace {

constexpr std::string_view kLevels[] = {"trace", "debug", "info", "warn", "error", "off"};

Level initial_level() {
  const char* text = std::getenv("COHIVE_LOG_LEVEL");
  return text ? level_from_text(text).value_or(Level::info) : Level::info;
}

std::atomic<Level>& current_level() {
  static std::atomic<Level> level{initial_level()};
  return level;
}
std::atomic<Format> current_format{Format::text};

/// spdlog gives the thread-safe sink; lines are formatted here so that text and JSON share one escaping rule.
spdlog::logger& sink() {
  static auto logger = [] {
    auto made = std::make_shared<spdlog::logger>("cohive", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->set_level(spdlog::level::trace);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

std::string timestamp() {
  const auto now = std::chrono::system_clock::now();
  const auto seconds = std::chrono::system_clock::to_time_t(now);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec, millis);
}

/// What a message must not hold in text format: anything that ends the line or speaks to the terminal.
std::string one_line(std::string_view message) {
  std::string result;
  result.reserve(message.size());
  for (char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

void configure(const Options& options) {
  current_level() = options.level;
  current_format = options.format;
}

bool enabled(Level level) noexcept {
  return level >= current_level().load(std::memory_order_relaxed);
}

std::optional<Level> level_from_text(std::string_view text) {
  for (std::size_t i = 0; i < std::size(kLevels); ++i)
    if (kLevels[i] == text) return static_cast<Level>(i);
  return std::nullopt;
}

std::optional<Format> format_from_text(std::string_view text) {
  if (text == "text") return Format::text;
  if (text == "json") return Format::json;
  return std::nullopt;
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
  if (!enabled(level)) return;
  const auto name = kLevels[static_cast<std::size_t>(level)];
  if (current_format == Format::json) {
    const nlohmann::json line{{"time", timestamp()}, {"level", name}, {"module", module}, {"message", message}};
    sink().info(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    sink().info("{} {:<5} {}: {}", timestamp(), name, module, one_line(message));
  }
}

}  // namespace cohive::log
