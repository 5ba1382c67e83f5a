#include "cohive/core/names.hpp"

#include <algorithm>

#include "utf8.hpp"

namespace cohive {

std::optional<std::string> fault_of_name(std::string_view name, std::size_t most) {
  if (name.empty()) return "must not be empty";
  if (name.size() > most) return "must have at most " + std::to_string(most) + " bytes";
  if (name.find('.') != std::string_view::npos) return "must not contain \".\"";
  while (!name.empty()) {
    const std::size_t size = utf8::printable(name);
    if (size == 0) return utf8::character(name) > 0 ? "must not contain control characters" : "must be UTF-8";
    name.remove_prefix(size);
  }
  return std::nullopt;
}

std::string printable_text(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t size = utf8::printable(text);
    result += size > 0 ? text.substr(0, size) : "\xef\xbf\xbd";
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return result;
}

}  // namespace cohive
