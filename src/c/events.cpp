#include "events.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "cohive/cohive.h"
#include "cohive/core/log_output.hpp"
#include "errors.hpp"
#include "fork.hpp"
#include "options.hpp"

namespace cohive::c {
namespace {

constexpr std::size_t kMostEvents = 16'384;  // beyond, lines are dropped

struct Question {
  bool answered = false, accepted = false;
};

struct Queue {
  std::mutex mutex;
  std::condition_variable pushed, answered;
  std::deque<Event> events;
  std::unordered_map<std::uint64_t, Question> questions;
  std::uint64_t next_question = 1, dropped = 0;
  bool woken = false;
};

/// Never destroyed: others log while the process ends.
std::atomic<Queue*>& queue() {
  static std::atomic<Queue*> queue{new Queue};
  return queue;
}

std::optional<Event> next_event(std::int64_t timeout_ms) {
  Queue& all = *queue();
  std::unique_lock lock(all.mutex);
  const auto something = [&all] { return !all.events.empty() || all.woken; };
  if (timeout_ms < 0)
    all.pushed.wait(lock, something);
  else
    all.pushed.wait_for(lock, wait_of(timeout_ms), something);
  if (std::exchange(all.woken, false) || all.events.empty()) return std::nullopt;
  Event event = std::move(all.events.front());
  all.events.pop_front();
  return event;
}

}  // namespace

void push_event(Event event) {
  Queue& all = *queue();
  const std::lock_guard lock(all.mutex);
  all.events.push_back(std::move(event));
  all.pushed.notify_one();
}

void push_line(log::Level level, std::string_view module, std::string_view message) {
  Queue& all = *queue();
  const std::lock_guard lock(all.mutex);
  if (all.events.size() >= kMostEvents) {
    ++all.dropped;
    return;
  }
  if (const auto count = std::exchange(all.dropped, 0); count > 0)
    all.events.push_back({COHIVE_EVENT_LOG, static_cast<int>(log::Level::warn), 0, "log",
                          log::format("{} lines are missing here: they came faster than they were read", count)});
  all.events.push_back({COHIVE_EVENT_LOG, static_cast<int>(level), 0, std::string(module), std::string(message)});
  all.pushed.notify_one();
}

bool ask(std::string (*describe)(std::uint64_t tag, const void* argument), const void* argument,
         std::chrono::milliseconds limit) {
  Queue& all = *queue();
  std::unique_lock lock(all.mutex);
  const std::uint64_t tag = all.next_question++;
  all.questions[tag] = {};
  all.events.push_back({COHIVE_EVENT_VALIDATE, 0, tag, {}, describe(tag, argument)});
  all.pushed.notify_one();
  all.answered.wait_for(lock, limit, [&] { return all.questions[tag].answered; });
  const bool accepted = all.questions[tag].accepted;
  all.questions.erase(tag);
  return accepted;
}

void restart_events() {
  queue() = new Queue;
}

}  // namespace cohive::c

using namespace cohive::c;

std::int32_t cohive_event_next(std::int64_t timeout_ms, cohive_event* event) {
  return guarded([&] {
    thread_local Event held;
    there(event, "event") = {};
    auto next = next_event(timeout_ms);
    if (!next) return COHIVE_PENDING;
    held = std::move(*next);
    *event = {held.kind, held.level, held.tag, held.module.c_str(), held.text.c_str(), held.text.size()};
    return COHIVE_OK;
  });
}

void cohive_event_wake(void) {
  Queue& all = *queue();
  const std::lock_guard lock(all.mutex);
  all.woken = true;
  all.pushed.notify_all();
}

std::int32_t cohive_event_answer(std::uint64_t tag, std::int32_t accepted) {
  return guarded([&] {
    Queue& all = *queue();
    const std::lock_guard lock(all.mutex);
    const auto found = all.questions.find(tag);
    if (found == all.questions.end()) return fail(COHIVE_NOT_FOUND, "nobody waits for this answer any more");
    found->second = {true, accepted != 0};
    all.answered.notify_all();
    return static_cast<std::int32_t>(COHIVE_OK);
  });
}

std::int32_t cohive_log_configure(const char* options) {
  return guarded([&] {
    std::string level, format = "text", to = "stderr";
    OptionReader reader(options);
    const bool with_level = reader.read("level", level);
    reader.read("format", format);
    reader.read("to", to);
    reader.finish();
    cohive::log::Options wanted;
    cohive::log::Output output;
    if (with_level && !cohive::log::set_levels(wanted, output, level))
      refuse("level must be like \"info\" or \"info,dht=off\", not " + cohive::log::quoted(level));
    const auto known = cohive::log::format_from_text(format);
    if (!known) refuse("format must be \"text\" or \"json\", not " + cohive::log::quoted(format));
    if (to != "stderr" && to != "events") refuse("to must be \"stderr\" or \"events\", not " + cohive::log::quoted(to));
    wanted.format = *known;
    if (to == "events") output.sink = push_line;
    follow_forks();
    cohive::log::configure(wanted);
    cohive::log::set_output(output);
  });
}
