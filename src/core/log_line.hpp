// One line of the log in each of its formats.
#pragma once

#include <chrono>
#include <string>

#include "cohive/core/log_output.hpp"

namespace cohive::log {

struct Line {
  std::chrono::system_clock::time_point time;
  Level level;
  std::string_view module;
  std::string_view message;
  Fields fields;
};

/// How the reader of an output wants text.
enum class Style {
  plain,
  colored,  ///< for a terminal
  journal   ///< for systemd: the priority in front, and no time, which the journal notes by itself
};

/// The name of a level, as "info".
std::string_view name_of(Level level);
/// The line with its end. Whatever its parts hold, it is one line, and text speaks to no terminal but by our colours.
std::string to_text(const Line& line, Style style);
std::string to_json(const Line& line, Style style);

}  // namespace cohive::log
