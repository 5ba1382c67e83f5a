#include "decode_into.hpp"

#include <new>

#include "cohive/codec/decoder.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::averaging {

Result<> decode_into(std::uint8_t* out, codec::Codec codec, codec::DType dtype, std::size_t count, ByteView bytes) {
  const bool as_it_is = codec::travels_as_it_is(codec, dtype) && dtype != codec::DType::boolean;
  if (as_it_is && bytes.size() == count * codec::size_of(dtype)) {
    if (count > 0) std::memcpy(out, bytes.data(), bytes.size());
    return ok();
  }
  const codec::Shape shape{static_cast<std::uint32_t>(count)};
  if (!codec::is_floating(dtype)) {
    auto tensor = codec::decode_tensor(codec, dtype, shape, false, bytes);
    if (!tensor) return tensor.error();
    if (count > 0) std::memcpy(out, tensor->data.data(), tensor->data.size());
    return ok();
  }
  const auto decoder = codec::Decoder::open(codec, dtype, count, bytes, &shape);
  if (!decoder) return decoder.error();
  (*decoder)->decode_bytes(0, count, out);
  return ok();
}

Result<Slice> memory_for(std::uint64_t bytes) {
  try {
    return Slice::uninitialised(bytes);
  } catch (const std::bad_alloc&) {
    return Error(cohive::Errc::io, "no memory for a tensor of " + std::to_string(bytes) + " bytes");
  }
}

}  // namespace cohive::averaging
