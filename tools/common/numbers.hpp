// Numbers as people write them into options: decimal digits, and nothing before or after them. Every option that takes
// a number says with one of these what it takes: whole(), real(), in_seconds().
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace cohive::tools {

inline constexpr std::uint64_t kAnyWhole = std::numeric_limits<std::uint64_t>::max();
inline constexpr std::uint64_t kMostEpochs = std::uint64_t{1} << 40;  ///< of options that count epochs or samples

/// Reads a whole number of 0 or more. Zeros before it change nothing: 0512 is 512.
std::optional<std::uint64_t> read_whole(std::string_view text);
/// Reads a finite number, as 0.5 or 1e-3.
std::optional<double> read_real(std::string_view text);
/// Reads a time: a number of seconds, or a number with a unit as 500ms, 30s, 5m, 2h, 1d.
std::optional<double> read_seconds(std::string_view text);
/// Reads a number of bytes per second, as 2500000, 500K or 1.5M; at least 1K, less carries no handshake.
std::optional<double> read_rate(std::string_view text);

/// Whether a text is in quotes, as docker's --env-file leaves them.
bool in_quotes(std::string_view text);
/// A value that a user gave, for a sentence that refuses it.
std::string shown(std::string_view value);

/// For `option->transform(...)`: refuses what is no whole number from `least` to `most`.
CLI::Validator whole(std::uint64_t least = 0, std::uint64_t most = kAnyWhole);
/// The same of numbers with fractions.
CLI::Validator real(double least, double most);
/// The same of times; the option gets a number of seconds.
CLI::Option* in_seconds(CLI::Option* option, double least, double most);

}  // namespace cohive::tools
