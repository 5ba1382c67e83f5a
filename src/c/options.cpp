#include "options.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cohive/core/log.hpp"
#include "errors.hpp"

namespace cohive::c {
namespace {

constexpr std::size_t kMostOfAValue = 60;  // that is shown

/// How many letters differ.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, changed}));
    }
  }
  return row.back();
}

nlohmann::json parsed(const char* text) {
  auto object = nlohmann::json::parse(text ? text : "{}", nullptr, false);
  if (!object.is_object()) refuse("options must be a JSON object");
  return object;
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  std::string best;
  std::size_t fewest = std::max<std::size_t>(word.size() / 2, 2) + 1;
  for (const auto& name : names)
    if (const std::size_t differ = distance(word, name); differ < fewest) {
      fewest = differ;
      best = name;
    }
  return best;
}

OptionReader::OptionReader(const char* text) : object_(parsed(text)) {}

const nlohmann::json* OptionReader::take(const char* name) {
  names_.emplace_back(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void OptionReader::wrong(const char* name, const char* wanted, const nlohmann::json& value) {
  const auto shown = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  refuse(std::string(name) + " must be " + wanted + ", not " + shown.substr(0, kMostOfAValue));
}

bool OptionReader::read(const char* name, bool& value) {
  const auto* given = take(name);
  if (!given) return false;
  if (!given->is_boolean()) wrong(name, "true or false", *given);
  value = given->get<bool>();
  return true;
}

bool OptionReader::read(const char* name, std::string& value) {
  const auto* given = take(name);
  if (!given) return false;
  if (!given->is_string()) wrong(name, "text", *given);
  value = given->get<std::string>();
  return true;
}

bool OptionReader::read(const char* name, std::vector<std::string>& value) {
  const auto* given = take(name);
  if (!given) return false;
  const bool texts = given->is_array() && std::ranges::all_of(*given, [](const auto& one) { return one.is_string(); });
  if (!texts) wrong(name, "an array of texts", *given);
  value = given->get<std::vector<std::string>>();
  return true;
}

bool OptionReader::read(const char* name, Duration& value) {
  const auto* given = take(name);
  if (!given) return false;
  if (*given == "inf") {
    value = Duration::max();
    return true;
  }
  if (!given->is_number() || !(given->get<double>() >= 0)) wrong(name, "a number of seconds from 0 on", *given);
  value = from_seconds(given->get<double>());
  return true;
}

bool OptionReader::read(const char* name, double& value, double least) {
  const auto* given = take(name);
  if (!given) return false;
  if (!given->is_number() || !(given->get<double>() >= least))
    wrong(name, log::format("a number from {} on", least).c_str(), *given);
  value = given->get<double>();
  return true;
}

bool OptionReader::read(const char* name, std::size_t& value, std::size_t least) {
  const auto* given = take(name);
  if (!given) return false;
  if (!given->is_number_unsigned() || given->get<std::size_t>() < least)
    wrong(name, log::format("an integer from {} on", least).c_str(), *given);
  value = given->get<std::size_t>();
  return true;
}

void OptionReader::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (std::ranges::find(names_, name) != names_.end()) continue;
    const std::string meant = nearest(name, names_);
    refuse("there is no option " + log::quoted(name, kMostOfAValue) +
           (meant.empty() ? "" : "; did you mean " + meant + "?"));
  }
}

}  // namespace cohive::c
