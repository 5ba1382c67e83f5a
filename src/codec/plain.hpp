// Decoding of numbers that travel one by one, as floats or halves.
#pragma once

#include "table.hpp"

namespace cohive::codec {

/// `stored` is the dtype of the numbers in the buffer. Errors: a buffer of another size.
Result<DecoderPtr> open_plain(DType stored, DType dtype, std::size_t count, ByteView buffer);

}  // namespace cohive::codec
