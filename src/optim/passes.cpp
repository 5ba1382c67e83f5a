#include "cohive/optim/passes.hpp"

#include <cmath>
#include <stdexcept>
#include <vector>

#include "blocks.hpp"
#include "optim/detail/kernels.hpp"
#include "optim/detail/norms.hpp"

namespace cohive::optim {
namespace {

void same_size(std::size_t a, std::size_t b) {
  if (a != b) throw std::invalid_argument("values that belong together differ in number");
}

/// What so many values are made into goes past the caches: no cache would keep it until it is read.
constexpr std::size_t kPastCaches = std::size_t{1} << 15;

/// Writes what was made of a block.
void put(const void* made, void* to, std::size_t bytes, bool past_caches) {
  if (past_caches)
    kernels().stream(made, to, bytes);
  else
    std::memmove(to, made, bytes);
}

bool block_is_finite(const ConstView& values, std::size_t at, std::size_t count) {
  switch (values.dtype()) {
    case DType::float64:
      return kernels().doubles.all_finite(static_cast<const double*>(values.data()) + at, count);
    case DType::float32:
      return kernels().singles.all_finite(static_cast<const float*>(values.data()) + at, count);
    default:
      return kernels().all_short_finite(static_cast<const std::uint16_t*>(values.data()) + at,
                                        values.dtype() == DType::float16 ? 0x7c00 : 0x7f80, count);
  }
}

}  // namespace

bool accumulate(View gradient, std::span<float> sum, Accumulating how) {
  same_size(gradient.size(), sum.size());
  const auto factor = static_cast<float>(how.factor);
  const bool past_caches = sum.size() >= kPastCaches;
  alignas(64) float scratch[kBlock], made[kBlock];
  bool finite = true;
  for_blocks(0, sum.size(), [&](std::size_t at, std::size_t here) {
    const float* values = read<float>(gradient, at, here, scratch);
    if (how.first) {
      finite &= kernels().replace(values, factor, made, here);
      put(made, sum.data() + at, here * sizeof(float), past_caches);
    } else {
      finite &= kernels().accumulate(values, factor, sum.data() + at, here);
    }
    if (how.clear) clear(gradient, at, here);
  });
  return finite;
}

bool scale(View values, double factor) {
  alignas(64) float scratch[kBlock];
  bool finite = true;
  for_blocks(0, values.size(), [&](std::size_t at, std::size_t here) {
    if (values.dtype() == DType::float64) {
      kernels().doubles.scale(factor, values_at<double>(values, at), here);
    } else if (values.dtype() == DType::float32) {
      kernels().singles.scale(static_cast<float>(factor), values_at<float>(values, at), here);
    } else {
      read<float>(values, at, here, scratch);
      kernels().singles.scale(static_cast<float>(factor), scratch, here);
      write<float>(values, at, here, scratch);
    }
    finite &= block_is_finite(values, at, here);
  });
  return finite;
}

bool all_finite(ConstView values) {
  bool finite = true;
  for_blocks(0, values.size(), [&](std::size_t at, std::size_t here) { finite &= block_is_finite(values, at, here); });
  return finite;
}

std::size_t norm_blocks(std::size_t size) {
  return (size + kNormBlock - 1) / kNormBlock;
}

void block_sums(ConstView values, std::span<double> sums) {
  alignas(64) float scratch[kBlock];
  for_blocks(0, values.size(), [&](std::size_t at, std::size_t here) {
    sums[at / kBlock] = values.dtype() == DType::float64
                            ? kernels().doubles.square_sum(static_cast<const double*>(values.data()) + at, here)
                            : kernels().singles.square_sum(read<float>(values, at, here, scratch), here);
  });
}

double total(std::span<const double> sums) {
  double result = 0;
  for (double sum : sums) result += sum;
  return result;
}

double square_sum(ConstView values) {
  std::vector<double> sums(norm_blocks(values.size()));
  block_sums(values, sums);
  return total(sums);
}

double clip_coefficient(double square_sum, double max_norm) {
  const double coefficient = max_norm / (std::sqrt(square_sum) + 1e-6);
  return coefficient > 1 ? 1 : coefficient;
}

void copy(ConstView from, View to) {
  same_size(from.size(), to.size());
  const bool past_caches = to.size() >= kPastCaches;
  alignas(64) float scratch[kBlock];
  alignas(64) std::uint8_t narrowed[kBlock * sizeof(double)];
  for_blocks(0, to.size(), [&](std::size_t at, std::size_t here) {
    const std::size_t bytes = here * codec::size_of(to.dtype());
    if (from.dtype() == to.dtype()) return put(bytes_at(from, at), bytes_at(to, at), bytes, past_caches);
    const float* values = read<float>(from, at, here, scratch);
    if (to.dtype() == DType::float32) return put(values, bytes_at(to, at), bytes, past_caches);
    codec::narrow(to.dtype(), values, narrowed, here);
    put(narrowed, bytes_at(to, at), bytes, past_caches);
  });
}

}  // namespace cohive::optim
