// Decoding into memory that is there already, so that a tensor that arrives in pieces exists once.
#pragma once

#include "cohive/codec/codec.hpp"

namespace cohive::averaging {

/// Decodes `count` values as a tensor of one dimension and puts them at `out`, in the dtype. Errors as
/// codec::decode_tensor.
Result<> decode_into(std::uint8_t* out, codec::Codec codec, codec::DType dtype, std::size_t count, ByteView bytes);

/// Memory of a tensor; its pages are taken as they are written. Errors: io when the system refuses.
Result<Slice> memory_for(std::uint64_t bytes);

}  // namespace cohive::averaging
