// float32 <-> float16 in bulk: F16C where the processor has it, plain arithmetic elsewhere. Both give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cohive::codec {

/// Clamped to the finite range, rounded to nearest even; NaN stays NaN.
void to_half(const float* in, std::uint16_t* out, std::size_t count);
void from_half(const std::uint16_t* in, float* out, std::size_t count);
/// For tests: the arithmetic versions.
std::uint16_t to_half_scalar(float value);
float from_half_scalar(std::uint16_t half);

}  // namespace cohive::codec
