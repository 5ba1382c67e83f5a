#include "bins.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.hpp"

namespace cohive::codec {
namespace {

// A bin's sum and count change in one load, one addition and one store. Neighbouring values go to different tables:
// a bin that just changed would have to be waited for.
using SumAndCount = float __attribute__((vector_size(8)));
constexpr std::size_t kTables = 4;
// Float sums stay exact enough, and counts exact, over this many values.
constexpr std::size_t kRun = 4096;

}  // namespace

void Bins::add(const float* values, const std::uint8_t* bins, std::size_t count) {
  alignas(64) SumAndCount tables[kTables][256];
  for (std::size_t at = 0; at < count; at += kRun) {
    const std::size_t end = std::min(count, at + kRun);
    std::memset(tables, 0, sizeof tables);
    std::size_t i = at;
    for (; i + kTables <= end; i += kTables)
      for (std::size_t t = 0; t < kTables; ++t) tables[t][bins[i + t]] += SumAndCount{values[i + t], 1.0f};
    for (; i < end; ++i) tables[0][bins[i]] += SumAndCount{values[i], 1.0f};
    for (std::size_t bin = 0; bin < 256; ++bin) {
      for (std::size_t t = 0; t < kTables; ++t) {
        sums_[bin] += static_cast<double>(tables[t][bin][0]);
        counts_[bin] += static_cast<double>(tables[t][bin][1]);
      }
    }
  }
}

void Bins::add(const Bins& other) {
  for (std::size_t bin = 0; bin < 256; ++bin) {
    sums_[bin] += other.sums_[bin];
    counts_[bin] += other.counts_[bin];
  }
}

CodeBook Bins::averages() const {
  CodeBook book{};
  for (std::size_t bin = 0; bin < 256; ++bin)
    if (counts_[bin] > 0) book[bin] = static_cast<float>(sums_[bin] / counts_[bin]);
  return book;
}

Borders::Borders(const std::array<float, 255>& borders) {
  for (std::size_t level = 0, first = 1; level < 8; ++level, first *= 2) {
    const std::size_t stride = 256 / first;  // between two nodes of the level
    for (std::size_t i = 0; i < first; ++i) tree_[first + i] = borders[stride / 2 - 1 + i * stride];
  }
  for (float border : borders) all_last_ |= std::isnan(border);
}

void Borders::find_bins(const float* values, std::uint8_t* bins, std::size_t count) const {
  if (all_last_) {
    std::memset(bins, 255, count);
  } else {
    kernels().find_bins(values, tree_.data(), bins, count);
  }
}

}  // namespace cohive::codec
