#include "cohive/core/status.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cohive/core/log.hpp"

namespace cohive {
namespace {

constexpr std::size_t kMaxSentence = 500;

}  // namespace

Status::Status(Runtime&) {}

Subscription Status::insert(std::string name, bool in_list, Section section) {
  if (entries_.size() >= kept_until_) {
    std::erase_if(entries_, [](const Entry& entry) { return entry.section.expired(); });
    kept_until_ = entries_.size() * 2 + 16;
  }
  auto shared = std::make_shared<Section>(std::move(section));
  entries_.push_back({std::move(name), in_list, shared});
  return shared;
}

Subscription Status::add(std::string name, Section section) {
  return insert(std::move(name), false, std::move(section));
}

Subscription Status::add_to_list(std::string name, Section element) {
  return insert(std::move(name), true, std::move(element));
}

std::string Status::json() const {
  struct Shown {
    std::string name, text;
    bool in_list;
  };
  std::vector<Shown> sections;  // in the order of their first entries
  for (const Entry& entry : entries_) {
    const auto section = entry.section.lock();
    if (!section) continue;
    const auto at = std::ranges::find(sections, entry.name, &Shown::name);
    if (at == sections.end()) {
      sections.push_back({entry.name, (*section)(), entry.in_list});
    } else if (entry.in_list && at->in_list) {
      at->text += "," + (*section)();
    }
  }
  std::string text;
  for (const auto& [name, value, in_list] : sections)
    text += (text.empty() ? "" : ",") +
            nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + ":" +
            (in_list ? "[" + value + "]" : value);
  return "{" + text + "}";
}

// ---- Failures

Failures::Failures(Runtime& runtime)
    : runtime_(runtime), section_(Status::of(runtime).add("failures", [this] { return json(); })) {}

void Failures::note(const std::string& kind, std::string_view cause, std::string_view sentence) {
  auto& failures = by_kind_[kind];
  if (failures.size() >= kKept) failures.pop_front();
  failures.push_back({runtime_.wall_time(), std::string(cause), std::string(sentence.substr(0, kMaxSentence))});
}

void Failures::warn(std::string_view module, const std::string& kind, std::string_view cause,
                    std::string_view sentence) {
  log::write(log::Level::warn, module, sentence);
  note(kind, cause, sentence);
}

std::string Failures::json() const {
  std::multimap<double, nlohmann::json> by_time;
  for (const auto& [kind, failures] : by_kind_)
    for (const Failure& failure : failures)
      by_time.emplace(
          failure.time,
          nlohmann::json{
              {"time", failure.time}, {"kind", kind}, {"cause", failure.cause}, {"message", failure.sentence}});
  auto list = nlohmann::json::array();
  for (auto& [time, failure] : by_time) list.push_back(std::move(failure));
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace cohive
