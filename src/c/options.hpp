// Options as JSON text. What nobody has read in the end is no option: the error names the nearest one that is.
//
//   OptionReader options(text);
//   options.read("client_mode", swarm.client_mode);
//   options.finish();
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cohive/core/time.hpp"

namespace cohive::c {

/// The name most like `word`; empty when none is.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

class OptionReader {
 public:
  /// Refuses it where the text is no JSON object. Null is {}.
  explicit OptionReader(const char* text);

  /// Each sets `value` where the option is given and not null, and returns whether it did. A value of another type, or
  /// out of bounds, is refused.
  bool read(const char* name, bool& value);
  bool read(const char* name, std::string& value);
  bool read(const char* name, std::vector<std::string>& value);
  bool read(const char* name, Duration& value);  ///< seconds; infinity is written as a text, "inf"
  bool read(const char* name, double& value, double least = 0);
  bool read(const char* name, std::size_t& value, std::size_t least = 0);
  /// Refuses what has not been read.
  void finish() const;

 private:
  const nlohmann::json* take(const char* name);
  [[noreturn]] static void wrong(const char* name, const char* wanted, const nlohmann::json& value);
  nlohmann::json object_;
  std::vector<std::string> names_;
};

}  // namespace cohive::c
