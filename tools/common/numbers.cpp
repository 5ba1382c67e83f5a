#include "common/numbers.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "cohive/core/log.hpp"

namespace cohive::tools {
namespace {

constexpr std::size_t kShown = 60;  // characters of a refused value

/// All of the text as a number; from_chars knows neither locales, octal numbers nor spaces.
template <class T>
std::optional<T> number_of(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string refusal(std::string_view text, const std::string& wanted) {
  return shown(text) + " is not " + wanted + (in_quotes(text) ? "; leave the quotes out" : "");
}

std::string limits(double least, double most) {
  return log::format("{:g} to {:g}", least, most);
}

CLI::Validator seconds(double least, double most) {
  const auto read = [=](std::string& text) {
    const auto value = read_seconds(text);
    if (!value || *value < least || *value > most)
      return refusal(text, "a time, as 30 or 5m, of " + limits(least, most) + " seconds");
    text = log::format("{}", *value);
    return std::string();
  };
  return CLI::Validator(read, log::format("FLOAT in [{:g} - {:g}]", least, most));
}

}  // namespace

std::optional<std::uint64_t> read_whole(std::string_view text) {
  return number_of<std::uint64_t>(text);
}

std::optional<double> read_real(std::string_view text) {
  const auto value = number_of<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<double> read_seconds(std::string_view text) {
  using namespace std::string_view_literals;
  static constexpr std::array kUnits{std::pair{"ms"sv, 1e-3}, std::pair{"min"sv, 60.0}, std::pair{"s"sv, 1.0},
                                     std::pair{"m"sv, 60.0},  std::pair{"h"sv, 3600.0}, std::pair{"d"sv, 86400.0}};
  double factor = 1;
  for (const auto& [unit, size] : kUnits) {
    if (!text.ends_with(unit)) continue;
    factor = size;
    text.remove_suffix(unit.size());
    while (text.ends_with(' ')) text.remove_suffix(1);
    break;
  }
  const auto value = read_real(text);
  return value && std::isfinite(*value * factor) ? std::optional(*value * factor) : std::nullopt;
}

std::optional<double> read_rate(std::string_view text) {
  constexpr double kLeast = 1e3, kMost = 1e12;
  static constexpr std::string_view kUnits = "KMGkmg";
  double factor = 1;
  const auto unit = text.empty() ? kUnits.npos : kUnits.find(text.back());
  if (unit != kUnits.npos) {
    factor = std::pow(1000, unit % 3 + 1);
    text.remove_suffix(1);
  }
  const auto value = read_real(text);
  if (!value || !(*value * factor >= kLeast && *value * factor <= kMost)) return std::nullopt;
  return *value * factor;
}

bool in_quotes(std::string_view text) {
  return text.size() > 1 && text.front() == text.back() && (text.front() == '"' || text.front() == '\'');
}

std::string shown(std::string_view value) {
  return value.empty() ? "an empty value" : log::quoted(value, kShown);
}

CLI::Validator whole(std::uint64_t least, std::uint64_t most) {
  const auto read = [=](std::string& text) {
    const auto value = read_whole(text);
    if (!value || *value < least || *value > most)
      return refusal(text, log::format("a whole number from {} to {}", least, most));
    text = std::to_string(*value);
    return std::string();
  };
  return CLI::Validator(read, most == kAnyWhole ? "" : log::format("INT in [{} - {}]", least, most));
}

CLI::Validator real(double least, double most) {
  const auto read = [=](std::string& text) {
    const auto value = read_real(text);
    if (!value || *value < least || *value > most) return refusal(text, "a number from " + limits(least, most));
    text = log::format("{}", *value);
    return std::string();
  };
  return CLI::Validator(read, log::format("FLOAT in [{:g} - {:g}]", least, most));
}

CLI::Option* in_seconds(CLI::Option* option, double least, double most) {
  return option->type_name("TIME")->transform(seconds(least, most));
}

}  // namespace cohive::tools
