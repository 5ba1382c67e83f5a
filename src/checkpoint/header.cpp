// The JSON header of a safetensors file. It is taken as a stream of tokens: a header that breaks a rule is refused
// where it does, however much follows, and a name that comes twice is noticed.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "cohive/checkpoint/errors.hpp"
#include "cohive/checkpoint/safetensors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/try.hpp"
#include "dtypes.hpp"

namespace cohive::checkpoint {
namespace {

constexpr std::string_view kMetadata = "__metadata__";

/// Tokens in the order of the text; every function returns false, with `error` set, to stop.
class HeaderReader {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  Header header;
  std::string error;

  bool start_object(std::size_t) {
    if (place_ == Place::before) return place_ = Place::names, true;
    if (place_ != Place::value) return refuse("an object where none belongs");
    if (name_ == kMetadata) return place_ = Place::metadata, true;
    header.tensors.push_back({.name = name_});
    fields_ = {};
    place_ = Place::tensor;
    return true;
  }
  bool key(string_t& key) {
    if (place_ == Place::names) {
      if (!names_.insert(key).second) return refuse("the name " + log::quoted(key) + " comes twice");
      name_ = std::move(key);
      place_ = Place::value;
      return true;
    }
    key_ = std::move(key);
    return true;
  }
  bool end_object() {
    if (place_ == Place::names) return place_ = Place::after, true;
    if (place_ == Place::tensor && !(fields_.dtype && fields_.shape && fields_.offsets))
      return refuse("tensor " + log::quoted(name_) + " lacks dtype, shape or data_offsets");
    place_ = Place::names;
    return true;
  }
  bool string(string_t& text) {
    if (place_ == Place::metadata) {
      if (!header.metadata.emplace(key_, std::move(text)).second)
        return refuse("the metadata " + log::quoted(key_) + " come twice");
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return refuse("a text where none belongs");
    if (std::exchange(fields_.dtype, true)) return refuse("a tensor with two types");
    const auto dtype = dtype_from_file(text);
    if (!dtype) return refuse("tensor " + log::quoted(name_) + " has the unknown type " + log::quoted(text));
    header.tensors.back().dtype = *dtype;
    return true;
  }
  bool start_array(std::size_t) {
    if (place_ != Place::tensor) return refuse("a list where none belongs");
    if (key_ == "shape" && !std::exchange(fields_.shape, true)) return place_ = Place::shape, true;
    if (key_ == "data_offsets" && !std::exchange(fields_.offsets, true)) return place_ = Place::offsets, true;
    return refuse("a list where none belongs");
  }
  bool end_array() {
    if (place_ == Place::offsets && offsets_seen_ != 2) return refuse("data_offsets are two numbers");
    offsets_seen_ = 0;
    place_ = Place::tensor;
    return true;
  }
  bool number_unsigned(number_unsigned_t number) {
    TensorEntry* tensor = header.tensors.empty() ? nullptr : &header.tensors.back();
    if (place_ == Place::shape) {
      if (number > std::numeric_limits<std::uint32_t>::max() || tensor->shape.size() == kMostDimensions)
        return refuse("tensor " + log::quoted(name_) + " has too large a shape");
      tensor->shape.push_back(static_cast<std::uint32_t>(number));
      return true;
    }
    if (place_ != Place::offsets || offsets_seen_ == 2) return refuse("a number where none belongs");
    (offsets_seen_++ == 0 ? tensor->begin : tensor->end) = number;
    return true;
  }
  bool number_integer(number_integer_t) { return refuse("a number below zero"); }
  bool number_float(number_float_t, const string_t&) { return refuse("a number that is not whole"); }
  bool null() { return refuse("a null"); }
  bool boolean(bool) { return refuse("a truth value"); }
  bool binary(binary_t&) { return refuse("binary data"); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) {
    return refuse("no JSON from byte " + std::to_string(at) + " of its header on");
  }

 private:
  static constexpr std::size_t kMostDimensions = 64;
  enum class Place { before, names, value, metadata, tensor, shape, offsets, after };

  bool refuse(std::string why) {
    error = std::move(why);
    return false;
  }

  Place place_ = Place::before;
  std::string name_, key_;
  std::set<std::string, std::less<>> names_;
  struct {
    bool dtype = false, shape = false, offsets = false;
  } fields_;
  int offsets_seen_ = 0;
};

Error refused(std::string why) {
  return Error(Errc::not_safetensors, std::move(why));
}

/// The data of the tensors, in their order, cover every byte once, as far as they go.
Result<> check_places(const std::vector<TensorEntry>& tensors) {
  std::uint64_t at = 0;
  for (const auto& tensor : tensors) {
    const std::string name = log::quoted(tensor.name);
    if (tensor.begin != at || tensor.end < tensor.begin)
      return refused("the data of " + name + " are not where they belong");
    const auto count = codec::element_count(tensor.shape);
    if (!count || *count * codec::size_of(tensor.dtype) != tensor.end - tensor.begin)
      return refused("the data of " + name + " are not of its shape");
    at = tensor.end;
  }
  return ok();
}

std::string in_quotes(const std::string& text) {
  return nlohmann::json(text).dump();
}

}  // namespace

Result<Header> parse_header(ByteView json, std::uint64_t data_size) {
  if (json.size() > kMaxHeader) return refused("its header is larger than 100 MB");
  if (json.empty() || json.front() != '{') return refused("its header is no JSON object");
  HeaderReader reader;
  const std::string_view text = as_text(json);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) return refused(std::move(reader.error));
  Header header = std::move(reader.header);
  std::ranges::sort(header.tensors, [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  TRY(check_places(header.tensors));
  const std::uint64_t end = header.tensors.empty() ? 0 : header.tensors.back().end;
  if (end > data_size) return Error(Errc::damaged, "it has been cut short");
  if (end < data_size) return refused("bytes after the last tensor");
  return header;
}

Result<std::string> encode_header(const Header& header) {
  std::string json = "{";
  try {
    const auto next = [&json] { json += json.size() > 1 ? "," : ""; };
    std::string metadata;
    for (const auto& [key, value] : header.metadata)
      metadata += (metadata.empty() ? "" : ",") + in_quotes(key) + ":" + in_quotes(value);
    if (!metadata.empty()) json += in_quotes(std::string(kMetadata)) + ":{" + metadata + "}";
    for (const auto& tensor : header.tensors) {
      const auto dtype = name_in_file(tensor.dtype);
      if (!dtype)
        return Error(cohive::Errc::invalid_argument, "safetensors files hold no " + std::string(name_of(tensor.dtype)));
      std::string shape;
      for (const auto size : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
      next();
      json += in_quotes(tensor.name) + R"(:{"dtype":")" + std::string(*dtype) + R"(","shape":[)" + shape +
              R"(],"data_offsets":[)" + std::to_string(tensor.begin) + "," + std::to_string(tensor.end) + "]}";
    }
  } catch (const nlohmann::json::type_error&) {
    return Error(cohive::Errc::invalid_argument, "a name or metadata of a checkpoint are not UTF-8");
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');  // so that the data are aligned
  if (json.size() > kMaxHeader)
    return Error(cohive::Errc::limit_exceeded, "the header of a checkpoint, at most 100 MB");
  std::string size(8, '\0');
  for (std::size_t i = 0; i < size.size(); ++i) size[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  return size + json;
}

}  // namespace cohive::checkpoint
