// Errors gather the address at every layer that they pass.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace cohive {

/// Leaves out what a message of several failures, separated by "; ", has said of a failure already: each part between
/// two
/// ": " is there once.
inline std::string said_once(std::string_view message) {
  static constexpr std::string_view kFailures = "; ", kParts = ": ";
  std::string text;
  for (std::size_t begin = 0; begin <= message.size();) {
    const std::size_t end = std::min(message.find(kFailures, begin), message.size());
    std::string failure;
    for (std::size_t at = begin; at <= end;) {
      const std::size_t stop = std::min(message.find(kParts, at), end);
      const std::string_view part = message.substr(at, stop - at);
      if (failure.find(part) == std::string::npos) failure.append(failure.empty() ? "" : kParts).append(part);
      at = stop + kParts.size();
    }
    text.append(text.empty() ? "" : kFailures).append(failure);
    begin = end + kFailures.size();
  }
  return text;
}

}  // namespace cohive
