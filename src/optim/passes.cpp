#include "cohive/optim/passes.hpp"

#include <cmath>
#include <stdexcept>
#include <vector>

#include "blocks.hpp"
#include "kernels.hpp"
#include "norms.hpp"

namespace cohive::optim {
namespace {

void same_size(std::size_t a, std::size_t b) {
  if (a != b) throw std::invalid_argument("values that belong together differ in number");
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
  const auto add = how.first ? kernels().replace : kernels().accumulate;
  const auto factor = static_cast<float>(how.factor);
  alignas(64) float scratch[kBlock];
  bool finite = true;
  for_blocks(0, sum.size(), [&](std::size_t at, std::size_t here) {
    finite &= add(read<float>(gradient, at, here, scratch), factor, sum.data() + at, here);
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
    sums[at / kBlock] =
        values.dtype() == DType::float64
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
  if (from.dtype() == DType::float64 && to.dtype() == DType::float64) {
    if (!to.empty()) std::memmove(to.data(), from.data(), to.size() * sizeof(double));
    return;
  }
  alignas(64) float scratch[kBlock];
  for_blocks(0, to.size(), [&](std::size_t at, std::size_t here) {
    write<float>(to, at, here, read<float>(from, at, here, scratch));
  });
}

}  // namespace cohive::optim
