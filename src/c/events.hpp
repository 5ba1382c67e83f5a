// Events that wait for the caller, and questions that wait for his answers.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cohive/core/log.hpp"

namespace cohive::c {

struct Event {
  std::int32_t kind = 0, level = 0;
  std::uint64_t tag = 0;
  std::string module, text;
};

/// Any thread.
void push_event(Event event);
/// A line of the log: dropped, and counted, where too many events wait.
void push_line(log::Level level, std::string_view module, std::string_view message);
/// Asks the caller by an event, whose text `describe(tag)` makes. False without an answer in time.
bool ask(std::string (*describe)(std::uint64_t tag, const void* argument), const void* argument,
         std::chrono::milliseconds limit);
/// Returns how long a call waits: a year at most, since clocks overflow by the longest timeouts.
inline std::chrono::milliseconds wait_of(std::int64_t timeout_ms) {
  return std::min<std::chrono::milliseconds>(std::chrono::milliseconds(timeout_ms), std::chrono::hours(24 * 365));
}
/// For the child of a fork(): nothing waits, and no lock is held.
void restart_events();

}  // namespace cohive::c
