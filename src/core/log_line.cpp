#include "log_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "utf8.hpp"

namespace cohive::log {
namespace {

constexpr std::array<std::string_view, 6> kLevels = {"trace", "debug", "info", "warn", "error", "off"};
constexpr std::array kPriorities = {7, 7, 6, 4, 3, 3};  // of syslog
constexpr std::array<std::string_view, 6> kColors = {"\x1b[2m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[1;31m", ""};
constexpr std::string_view kDim = "\x1b[2m", kUncolored = "\x1b[0m";

std::string timestamp(std::chrono::system_clock::time_point time) {
  const auto seconds = std::chrono::system_clock::to_time_t(time);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count() % 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec, millis);
}

/// What a message must not hold in text format: anything that ends the line or speaks to the terminal.
std::string one_line(std::string_view message) {
  std::string result;
  result.reserve(message.size());
  while (!message.empty()) {
    const std::size_t size = utf8::printable(message);
    if (size > 0) {
      result += message.substr(0, size);
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(message.front()));
    }
    message.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return result;
}

std::string priority(Level level) {
  return fmt::format("<{}>", kPriorities[static_cast<std::size_t>(level)]);
}

nlohmann::json value_of(const detail::Argument& argument) {
  return std::visit(
      [](const auto& value) -> nlohmann::json {
        if constexpr (std::is_same_v<decltype(value), const char&>) {
          return std::string(1, value);
        } else {
          return value;
        }
      },
      argument);
}

}  // namespace

std::string_view name_of(Level level) {
  return kLevels[static_cast<std::size_t>(level)];
}

std::string to_text(const Line& line, Style style) {
  const std::string message = one_line(line.message), module = one_line(line.module);
  switch (style) {
    case Style::journal:
      return fmt::format("{}{}: {}\n", priority(line.level), module, message);
    case Style::colored:
      return fmt::format("{}{}{} {}{:<5}{} {}: {}\n", kDim, timestamp(line.time), kUncolored,
                         kColors[static_cast<std::size_t>(line.level)], name_of(line.level), kUncolored, module,
                         message);
    case Style::plain:
      break;
  }
  return fmt::format("{} {:<5} {}: {}\n", timestamp(line.time), name_of(line.level), module, message);
}

std::string to_json(const Line& line, Style style) {
  nlohmann::json object = nlohmann::json::object();
  // The names that every line has come last: a field cannot take their place.
  for (const Field& field : line.fields) object[std::string(field.name())] = value_of(field.value());
  object["time"] = timestamp(line.time);
  object["level"] = name_of(line.level);
  object["module"] = line.module;
  object["message"] = line.message;
  const std::string text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return (style == Style::journal ? priority(line.level) : std::string()) + text + "\n";
}

}  // namespace cohive::log
