/// \file
/// Names that travel: of runs and of averagers. They become parts of protocol ids, keys of the DHT, labels of metrics
/// and values of JSON, on other machines, too.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace cohive {

/// The longest name of a run, in bytes.
inline constexpr std::size_t kMaxRunId = 256;
/// The longest prefix of an averager, in bytes: that of a run has a suffix. With a class and a method it makes a
/// protocol id, of at most 1024 bytes.
inline constexpr std::size_t kMaxPrefix = 512;

/// Returns what is wrong with a name, to be put after it in a sentence: "must not be empty"; nullopt where nothing is.
/// A name is UTF-8 without control characters and without ".", which hivemind separates its parts with.
/// \param most  bytes
std::optional<std::string> fault_of_name(std::string_view name, std::size_t most = kMaxRunId);

/// Returns the text with U+FFFD for each byte that is no UTF-8, and for each control character: whatever reads it, a
/// scrape or a parser of JSON, takes what a peer wrote for a text.
std::string printable_text(std::string_view text);

}  // namespace cohive
