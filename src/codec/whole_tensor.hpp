// Whole tensors, split into steps for the pool.
#pragma once

#include <memory>
#include <optional>

#include "cohive/codec/decoder.hpp"
#include "encoder.hpp"

namespace cohive::codec {

/// Null for a tensor whose own bytes are what travels. Errors: data that does not fit the shape.
Result<std::unique_ptr<Encoder>> tensor_encoder(Codec codec, const Tensor& tensor);

/// A tensor with memory to decode into; no decoder when it is complete already.
struct TensorDecoding {
  std::optional<Decoder> decoder;
  Tensor tensor;
};
Result<TensorDecoding> open_tensor(Codec codec, DType dtype, Shape shape, bool requires_grad, ByteView buffer);

}  // namespace cohive::codec
