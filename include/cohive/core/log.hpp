/// \file
/// Logging: one line per event on stderr, as text or JSON. Safe from any thread.
/// Text that came from a peer goes through log::quoted, so that it can neither forge lines nor flood them.
///
///   log::info("dht", "{} answered in {:.1f} ms", peer, milliseconds);
///
/// A message is text with {} for each argument, or {:spec} with the format specifications of std::format; the compiler
/// checks that they fit. Arguments are numbers, bools, characters, text, peer ids, errors, and every type for which
/// argument-dependent lookup finds `std::string log_text(const T&)`. Formatting happens in log.cpp, so that this header
/// drags no formatting library into a program, which may have another version of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cohive/core/log_format.hpp"
#include "cohive/core/peer_id.hpp"
#include "cohive/core/result.hpp"

namespace cohive {

/// How a peer and an error are printed.
inline std::string log_text(const PeerId& peer) {
  return peer.text();
}
/// Returns what is printed for an error.
inline std::string log_text(const Error& error) {
  return error.message();
}

}  // namespace cohive

namespace cohive::log {

/// How much a line matters; `off` is for levels of what is printed alone.
enum class Level { trace, debug, info, warn, error, off };
/// Lines for people, or a JSON object per line.
enum class Format { text, json };

/// What is printed, and how.
struct Options {
  Level level = Level::info;     ///< lines below it are left out; levels of single modules come first
  Format format = Format::text;  ///< of the lines
};
/// Sets level and format for the process; call before threads start. Default: text, info, or $COHIVE_LOG_LEVEL.
void configure(const Options& options);
/// Whether lines of this level are kept at all.
bool enabled(Level level) noexcept;
/// Parses "trace".."off" / "text", "json".
std::optional<Level> level_from_text(std::string_view text);
/// Parses "text" and "json"; nullopt for other text.
std::optional<Format> format_from_text(std::string_view text);

/// `text` in double quotes, control and non-ASCII bytes escaped, cut after `limit` characters.
std::string quoted(std::string_view text, std::size_t limit = 200);

/// Writes a line of the module. Any thread; it does not wait for the output.
void write(Level level, std::string_view module, std::string_view message);

/// The message as a string, for other uses than a log line.
template <detail::Printable... Args>
std::string format(MessageFor<Args...> message, const Args&... args) {
  return detail::format(message.text(), {detail::erased(args)...});
}

/// Writes a line for people who look for a defect.
template <detail::Printable... Args>
void debug(std::string_view module, MessageFor<Args...> message, const Args&... args) {
  if (enabled(Level::debug)) write(Level::debug, module, log::format(message, args...));
}
/// Writes a line for people who run the program.
template <detail::Printable... Args>
void info(std::string_view module, MessageFor<Args...> message, const Args&... args) {
  if (enabled(Level::info)) write(Level::info, module, log::format(message, args...));
}
/// Writes a line on what goes wrong, and is made up for.
template <detail::Printable... Args>
void warn(std::string_view module, MessageFor<Args...> message, const Args&... args) {
  if (enabled(Level::warn)) write(Level::warn, module, log::format(message, args...));
}
/// Writes a line on what went wrong for good.
template <detail::Printable... Args>
void error(std::string_view module, MessageFor<Args...> message, const Args&... args) {
  if (enabled(Level::error)) write(Level::error, module, log::format(message, args...));
}

}  // namespace cohive::log
