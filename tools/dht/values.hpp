// DHT keys and values as JSON: what a person types and reads.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cohive/core/msgpack.hpp"

namespace cohive::tools {

/// Text that is JSON becomes what it says, any other text stays text: 5 is a number, "5" and five are texts.
/// {"hex": "00ff"} stands for bytes.
msgpack::Value value_from_text(const std::string& text);
/// Bytes become {"hex": ...}, tuples arrays, NaN and infinities texts, map keys that are not text their JSON.
nlohmann::json json_from_value(const msgpack::Value& value);
/// One line without control characters, whatever a peer wrote.
std::string line_of(const nlohmann::json& value);

}  // namespace cohive::tools
