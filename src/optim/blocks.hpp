// Values of any floating dtype a block at a time, as the kernels' type: what is made of a block stays in the
// first-level cache until it is used.
#pragma once

#include <algorithm>
#include <cstring>

#include "codec/detail/values.hpp"
#include "cohive/optim/passes.hpp"

namespace cohive::optim {

inline constexpr std::size_t kBlock = kNormBlock;

template <class T>
inline constexpr DType kDTypeOf = sizeof(T) == sizeof(float) ? DType::float32 : DType::float64;

inline const std::uint8_t* bytes_at(const ConstView& view, std::size_t at) {
  return static_cast<const std::uint8_t*>(view.data()) + at * codec::size_of(view.dtype());
}
inline std::uint8_t* bytes_at(const View& view, std::size_t at) {
  return static_cast<std::uint8_t*>(view.data()) + at * codec::size_of(view.dtype());
}
/// The memory itself, of a view that holds T.
template <class T>
T* values_at(const View& view, std::size_t at) {
  return static_cast<T*>(view.data()) + at;
}

/// Values [at, at + count), count <= kBlock, where they lie when they are T, else in `scratch`.
template <class T>
const T* read(const ConstView& view, std::size_t at, std::size_t count, T* scratch) {
  if (view.dtype() == kDTypeOf<T>) return static_cast<const T*>(view.data()) + at;
  if constexpr (sizeof(T) == sizeof(float)) {
    codec::widen(view.dtype(), bytes_at(view, at), scratch, count);
  } else {
    float singles[kBlock];
    const float* from = read<float>(view, at, count, singles);
    std::copy_n(from, count, scratch);
  }
  return scratch;
}

/// Writes `count` values, at most kBlock, from `at` on.
template <class T>
void write(const View& view, std::size_t at, std::size_t count, const T* values) {
  if (view.dtype() == kDTypeOf<T>) {
    std::memmove(bytes_at(view, at), values, count * sizeof(T));
  } else if constexpr (sizeof(T) == sizeof(float)) {
    codec::narrow(view.dtype(), values, bytes_at(view, at), count);
  } else {
    float singles[kBlock];
    for (std::size_t i = 0; i < count; ++i) singles[i] = static_cast<float>(values[i]);
    write<float>(view, at, count, singles);
  }
}

inline void clear(const View& view, std::size_t at, std::size_t count) {
  std::memset(bytes_at(view, at), 0, count * codec::size_of(view.dtype()));
}

/// use(at, count) for [offset, offset + count) in blocks that end at multiples of kBlock.
template <class Use>
void for_blocks(std::size_t offset, std::size_t count, Use use) {
  for (const std::size_t end = offset + count; offset < end;) {
    const std::size_t here = std::min(kBlock - offset % kBlock, end - offset);
    use(offset, here);
    offset += here;
  }
}

}  // namespace cohive::optim
