#include "decode_into.hpp"

#include <new>

#include "cohive/core/errors.hpp"

namespace cohive::averaging {

Result<> decode_into(std::uint8_t* out, codec::Codec codec, codec::DType dtype, std::size_t count, ByteView bytes) {
  const bool as_it_is =
      codec == codec::Codec::none && dtype != codec::DType::bfloat16 && dtype != codec::DType::boolean;
  if (as_it_is && bytes.size() == count * codec::size_of(dtype)) {
    if (count > 0) std::memcpy(out, bytes.data(), bytes.size());
    return ok();
  }
  auto tensor = codec::decode_tensor(codec, dtype, {static_cast<std::uint32_t>(count)}, false, bytes);
  if (!tensor) return tensor.error();
  if (count > 0) std::memcpy(out, tensor->data.data(), tensor->data.size());
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
