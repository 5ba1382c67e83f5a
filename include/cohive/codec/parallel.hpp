/// \file
/// The codecs off the loop: large tensors are shared out over the runtime's pool, small ones are done in place. Results
/// are those of codec.hpp, bit for bit, however many threads took part. Loop thread only. Dropping a task abandons its
/// work soon; the memory given stays alive until then, so it travels with an owner.
#pragma once

#include <memory>

#include "cohive/codec/codec.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::codec {

/// Values to read, and what keeps them alive and unchanged.
struct SharedValues {
  std::shared_ptr<const void> owner;
  std::span<const float> values;
};

/// Values to write, and what keeps them alive. Nobody else may touch them until the task ends; where it was dropped,
/// not before the owner is otherwise unreferenced.
struct SharedOutput {
  std::shared_ptr<const void> owner;
  std::span<float> values;
};

/// As the functions of codec.hpp with these names.
Task<Slice> encode(Runtime& runtime, Codec codec, SharedValues values);
Task<Slice> encode_difference(Runtime& runtime, Codec codec, SharedValues average, SharedValues base);
Task<Result<>> decode(Runtime& runtime, Codec codec, DType dtype, Slice buffer, SharedOutput out);
Task<Result<>> decode_and_accumulate(Runtime& runtime, Codec codec, DType dtype, Slice buffer, float weight,
                                     SharedOutput accumulator);
Task<Result<Slice>> encode_tensor(Runtime& runtime, Codec codec, Tensor tensor);
Task<Result<Tensor>> decode_tensor(Runtime& runtime, Codec codec, DType dtype, Shape shape, bool requires_grad,
                                   Slice buffer);

}  // namespace cohive::codec
