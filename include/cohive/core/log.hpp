/// \file
/// Logging: one line per event on stderr, as text or JSON. Safe from any thread.
/// Text that came from a peer goes through log::quoted, so that it can neither forge lines nor flood them.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/result.hpp"

namespace cohive::log {

enum class Level { trace, debug, info, warn, error, off };
enum class Format { text, json };

struct Options {
  Level level = Level::info;
  Format format = Format::text;
};
/// Sets level and format for the process; call before threads start. Default: text, info, or $COHIVE_LOG_LEVEL.
void configure(const Options& options);
bool enabled(Level level) noexcept;
/// Parses "trace".."off" / "text", "json".
std::optional<Level> level_from_text(std::string_view text);
std::optional<Format> format_from_text(std::string_view text);

/// `text` in double quotes, control and non-ASCII bytes escaped, cut after `limit` characters.
std::string quoted(std::string_view text, std::size_t limit = 200);

void write(Level level, std::string_view module, std::string_view message);

template <class... Args>
void debug(std::string_view module, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::debug)) write(Level::debug, module, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(std::string_view module, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::info)) write(Level::info, module, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(std::string_view module, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::warn)) write(Level::warn, module, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(std::string_view module, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::error)) write(Level::error, module, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace cohive::log

namespace cohive::log::detail {
/// fmt/core.h keeps its own string formatter for format.h, which is too heavy for this header.
struct PlainFormatter {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <class Context>
  static auto copy(std::string_view text, Context& context) {
    auto out = context.out();
    for (char c : text) *out++ = c;
    return out;
  }
};
}  // namespace cohive::log::detail

template <>
struct fmt::formatter<cohive::PeerId> : cohive::log::detail::PlainFormatter {
  template <class Context>
  auto format(const cohive::PeerId& peer, Context& context) const {
    return copy(peer.text(), context);
  }
};
template <>
struct fmt::formatter<cohive::Error> : cohive::log::detail::PlainFormatter {
  template <class Context>
  auto format(const cohive::Error& error, Context& context) const {
    return copy(error.message(), context);
  }
};
