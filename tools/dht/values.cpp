#include "dht/values.hpp"

#include <cmath>

#include "common/program.hpp"

namespace cohive::tools {
namespace {

using nlohmann::json;

msgpack::Value value_from_json(const json& value) {
  switch (value.type()) {
    case json::value_t::boolean:
      return value.get<bool>();
    case json::value_t::number_integer:
      return value.get<std::int64_t>();
    case json::value_t::number_unsigned:
      return value.get<std::uint64_t>();
    case json::value_t::number_float:
      return value.get<double>();
    case json::value_t::string:
      return value.get<std::string>();
    case json::value_t::array: {
      msgpack::Array array;
      for (const auto& item : value) array.items.push_back(value_from_json(item));
      return array;
    }
    case json::value_t::object: {
      if (value.size() == 1 && value.contains("hex") && value["hex"].is_string()) {
        const auto hex = value["hex"].get<std::string>();
        const Bytes bytes = from_hex(hex);
        if (bytes.empty() && !hex.empty()) throw Exit{kBadInput, "'" + hex + "' is not hexadecimal"};
        return msgpack::Value::bin(bytes);
      }
      msgpack::Map map;
      for (const auto& [key, item] : value.items()) map.entries.emplace_back(key, value_from_json(item));
      return map;
    }
    default:
      return {};
  }
}

json array_of(const std::vector<msgpack::Value>& items) {
  json array = json::array();
  for (const auto& item : items) array.push_back(json_from_value(item));
  return array;
}

struct ToJson {
  json operator()(std::monostate) const { return nullptr; }
  json operator()(bool flag) const { return flag; }
  json operator()(std::int64_t number) const { return number; }
  json operator()(std::uint64_t number) const { return number; }
  json operator()(double number) const {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return number;
  }
  json operator()(const std::string& text) const { return text; }
  json operator()(const msgpack::Bin& bytes) const { return {{"hex", to_hex(as_bytes(bytes.data))}}; }
  json operator()(const msgpack::Array& array) const { return array_of(array.items); }
  json operator()(const msgpack::Tuple& tuple) const { return array_of(tuple.items); }
  json operator()(const msgpack::Map& map) const {
    json object = json::object();
    for (const auto& [key, value] : map.entries) {
      const auto* text = key.get_if<std::string>();
      object[text ? *text : line_of(json_from_value(key))] = json_from_value(value);
    }
    return object;
  }
  json operator()(const msgpack::Ext& ext) const { return {{"ext", ext.type}, {"hex", to_hex(as_bytes(ext.data))}}; }
};

}  // namespace

msgpack::Value value_from_text(const std::string& text) {
  const json parsed = json::parse(text, nullptr, false);
  return parsed.is_discarded() ? msgpack::Value(text) : value_from_json(parsed);
}

json json_from_value(const msgpack::Value& value) {
  return std::visit(ToJson(), value.storage());
}

std::string line_of(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

}  // namespace cohive::tools
