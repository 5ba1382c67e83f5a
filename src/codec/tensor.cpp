#include "cohive/codec/tensor.hpp"

#include <array>

namespace cohive::codec {
namespace {

struct Kind {
  DType dtype;
  std::string_view name;
  std::size_t size;
};
constexpr std::array kKinds = {
    Kind{DType::float64, "float64", 8},     Kind{DType::float32, "float32", 4},
    Kind{DType::float16, "float16", 2},     Kind{DType::bfloat16, "bfloat16", 2},
    Kind{DType::complex64, "complex64", 8}, Kind{DType::complex128, "complex128", 16},
    Kind{DType::int64, "int64", 8},         Kind{DType::int32, "int32", 4},
    Kind{DType::int16, "int16", 2},         Kind{DType::int8, "int8", 1},
    Kind{DType::uint8, "uint8", 1},         Kind{DType::boolean, "bool", 1},
};
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;

}  // namespace

std::size_t size_of(DType dtype) {
  return kKinds[static_cast<std::size_t>(dtype)].size;
}
std::string_view name_of(DType dtype) {
  return kKinds[static_cast<std::size_t>(dtype)].name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Kind& kind : kKinds)
    if (kind.name == name) return kind.dtype;
  return std::nullopt;
}

std::optional<std::uint64_t> element_count(const Shape& shape) {
  std::uint64_t count = 1;
  for (std::uint32_t size : shape) {
    if (size != 0 && count > kMaxElements / size) return std::nullopt;
    count *= size;
  }
  return count;
}

}  // namespace cohive::codec
