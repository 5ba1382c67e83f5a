#include "encoder.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

#include "dynamic_map.hpp"
#include "kernels.hpp"
#include "quantiles.hpp"

namespace cohive::codec {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void put(std::uint8_t* to, std::int64_t value) {
  std::memcpy(to, &value, 8);
}

class PlainEncoder final : public Encoder {
 public:
  explicit PlainEncoder(Values values) : Encoder(values, values.size() * 4) {}
  std::size_t steps(int phase) const override { return phase == 0 ? segments() : 0; }
  void run(int, std::size_t step) override {
    for_blocks(values_, step * kSegment, segment_size(step),
               [&](const float* block, std::size_t first, std::size_t count) {
                 std::memcpy(out(first * 4), block, count * 4);
               });
  }
};

class HalfEncoder final : public Encoder {
 public:
  explicit HalfEncoder(Values values) : Encoder(values, values.size() * 2) {}
  std::size_t steps(int phase) const override { return phase == 0 ? segments() : 0; }
  void run(int, std::size_t step) override {
    const std::size_t begin = step * kSegment;
    if (const auto pair = values_.half_difference(begin))  // as hivemind's reducers answer: in one pass
      return kernels().half_difference(pair->from, pair->halves, out(begin * 2), segment_size(step));
    for_blocks(values_, step * kSegment, segment_size(step),
               [&](const float* block, std::size_t first, std::size_t count) {
                 kernels().to_half(block, out(first * 2), count);
               });
  }
};

/// Sums over values around the first of them; enough for a mean and, once that is rounded, the spread around it.
struct Spread {
  double pilot = 0;
  Moments moments;
  std::size_t count = 0;

  double mean() const { return pilot + moments.sum / static_cast<double>(count); }
  /// Root of the sum of squared distances from `centre`.
  double norm(double centre) const {
    const double shift = centre - pilot;
    const double squares = moments.squares - 2 * shift * moments.sum + static_cast<double>(count) * shift * shift;
    return std::sqrt(squares < 0 ? 0 : squares);  // NaN stays
  }
};

/// The spread of a stretch of values around `pilot`.
Moments measure(const Values& values, std::size_t first, std::size_t count, float pilot) {
  Moments total;
  for_blocks(values, first, count, [&](const float* block, std::size_t, std::size_t here) {
    const Moments part = kernels().moments(block, pilot, here);
    total.sum += part.sum;
    total.squares += part.squares;
  });
  return total;
}

float value_at(const Values& values, std::size_t index) {
  alignas(64) float scratch[Values::kBlock];
  return *values.block(index, 1, scratch);
}

/// hivemind wire spec, section 5.4. Halves, then all means, then all deviations. Short rows are measured and written in
/// one go, several rows a step; long rows are cut into segments, measured first.
class MeanStdEncoder final : public Encoder {
 public:
  MeanStdEncoder(Values values, std::size_t rows, std::size_t row)
      : Encoder(values, values.size() * 2 + rows * 8),
        rows_(rows),
        row_(row),
        pieces_((row + kSegment - 1) / kSegment),
        rows_per_step_(std::max<std::size_t>(1, kSegment / std::max<std::size_t>(1, row))) {
    if (pieces_ > 1) parts_.resize(rows * pieces_);
  }

  std::size_t steps(int phase) const override {
    if (pieces_ > 1) return phase < 2 ? rows_ * pieces_ : 0;
    return phase == 0 ? (rows_ + rows_per_step_ - 1) / rows_per_step_ : 0;
  }

  void run(int phase, std::size_t step) override {
    if (pieces_ > 1) {
      const std::size_t row = step / pieces_, first = step % pieces_ * kSegment,
                        count = std::min(kSegment, row_ - first);
      if (phase == 0) {
        parts_[step] = measure(values_, row * row_ + first, count, value_at(values_, row * row_));
      } else {
        write(row, first, count);
      }
      return;
    }
    for (std::size_t row = step * rows_per_step_; row < std::min(rows_, (step + 1) * rows_per_step_); ++row) {
      Spread spread{0, {}, row_};
      if (row_ > 0) {
        spread.pilot = static_cast<double>(value_at(values_, row * row_));
        spread.moments = measure(values_, row * row_, row_, static_cast<float>(spread.pilot));
      }
      scale(row, spread);
      write(row, 0, row_);
    }
  }

  void settle(int phase) override {
    if (pieces_ <= 1 || phase != 0) return;
    for (std::size_t row = 0; row < rows_; ++row) {
      Spread spread{static_cast<double>(value_at(values_, row * row_)), {}, row_};
      for (std::size_t piece = 0; piece < pieces_; ++piece) {
        spread.moments.sum += parts_[row * pieces_ + piece].sum;
        spread.moments.squares += parts_[row * pieces_ + piece].squares;
      }
      scale(row, spread);
    }
  }

 private:
  std::uint8_t* mean_of(std::size_t row) { return out(values_.size() * 2 + row * 4); }
  std::uint8_t* deviation_of(std::size_t row) { return out(values_.size() * 2 + (rows_ + row) * 4); }

  void scale(std::size_t row, const Spread& spread) {
    // Python divides by zero for rows of no values; these are the bits it gets.
    float mean = std::bit_cast<float>(0xffc00000u), deviation = mean;
    if (row_ > 0) {
      mean = static_cast<float>(spread.mean());
      deviation = static_cast<float>(spread.norm(static_cast<double>(mean))) /
                  static_cast<float>(std::sqrt(static_cast<double>(row_)));
      if (deviation < std::numeric_limits<float>::epsilon()) deviation = std::numeric_limits<float>::epsilon();
    }
    std::memcpy(mean_of(row), &mean, 4);
    std::memcpy(deviation_of(row), &deviation, 4);
  }

  void write(std::size_t row, std::size_t first, std::size_t count) {
    float mean, deviation;
    std::memcpy(&mean, mean_of(row), 4);
    std::memcpy(&deviation, deviation_of(row), 4);
    for_blocks(values_, row * row_ + first, count, [&](const float* block, std::size_t at, std::size_t here) {
      kernels().scaled_to_half(block, mean, deviation, out(at * 2), here);
    });
  }

  std::size_t rows_, row_, pieces_, rows_per_step_;
  std::vector<Moments> parts_;
};

/// Buffers of a code book and an index per value. Source: hivemind wire spec, sections 5.5 and 5.6.
class CodeBookEncoder : public Encoder {
 protected:
  static constexpr std::size_t kHead = 8 + sizeof(CodeBook);

  explicit CodeBookEncoder(Values values) : Encoder(values, kHead + values.size()), bins_(segments()) {
    put(out(0), 256);
    std::memset(out(8), 0, sizeof(CodeBook));
  }
  std::uint8_t* index_of(std::size_t value) { return out(kHead + value); }

  void write_code_book() {
    Bins all;
    for (const Bins& bins : bins_) all.add(bins);
    const CodeBook book = all.averages();
    std::memcpy(out(8), book.data(), sizeof book);
  }

  std::vector<Bins> bins_;  // one for each segment
};

class UniformEncoder final : public CodeBookEncoder {
 public:
  explicit UniformEncoder(Values values) : CodeBookEncoder(values), parts_(segments()) {
    if (values.size() > 0) pilot_ = value_at(values, 0);
  }

  std::size_t steps(int phase) const override { return phase < 2 ? segments() : 0; }

  void run(int phase, std::size_t step) override {
    const std::size_t first = step * kSegment, count = segment_size(step);
    if (phase == 0) {
      parts_[step] = measure(values_, first, count, pilot_);
      return;
    }
    for_blocks(values_, first, count, [&](const float* block, std::size_t at, std::size_t here) {
      kernels().quantize(block, shift_, inverse_scale_, index_of(at), here);
      bins_[step].add(block, index_of(at), here);
    });
  }

  void settle(int phase) override {
    if (phase == 1) return write_code_book();
    Spread spread{static_cast<double>(pilot_), {}, values_.size()};
    for (const Moments& part : parts_) {
      spread.moments.sum += part.sum;
      spread.moments.squares += part.squares;
    }
    shift_ = rounded_to(values_.dtype(), spread.mean());
    const float deviation = static_cast<float>(spread.norm(static_cast<double>(shift_))) /
                            static_cast<float>(std::sqrt(static_cast<double>(values_.size() - 1)));
    inverse_scale_ = 1.0f / (kRangeInSigmas * deviation / 256.0f);
    // Values that do not differ (or hardly, or are not numbers) all go to bin 0.
    if (!std::isfinite(inverse_scale_)) inverse_scale_ = kNaN;
  }

 private:
  static constexpr float kRangeInSigmas = 6;

  float pilot_ = 0, shift_ = 0, inverse_scale_ = 0;
  std::vector<Moments> parts_;
};

class QuantileEncoder final : public CodeBookEncoder {
 public:
  explicit QuantileEncoder(Values values)
      : CodeBookEncoder(values),
        chunk_(quantile_chunk(values.size())),
        quantiles_((values.size() + chunk_ - 1) / chunk_) {}

  std::size_t steps(int phase) const override { return phase == 0 ? quantiles_.size() : phase == 1 ? segments() : 0; }

  void run(int phase, std::size_t step) override {
    if (phase == 0) {
      const std::size_t first = step * chunk_, count = std::min(chunk_, values_.size() - first);
      std::vector<float> chunk(count), spare(count);
      for_blocks(values_, first, count, [&](const float* block, std::size_t at, std::size_t here) {
        std::copy_n(block, here, chunk.begin() + static_cast<std::ptrdiff_t>(at - first));
      });
      quantiles_[step] = quantiles_of(chunk, spare);
      return;
    }
    for_blocks(values_, step * kSegment, segment_size(step), [&](const float* block, std::size_t at, std::size_t here) {
      borders_->find_bins(block, index_of(at), here);
      bins_[step].add(block, index_of(at), here);
    });
  }

  void settle(int phase) override {
    if (phase == 1) return write_code_book();
    std::vector<float> all;
    for (const Quantiles& quantiles : quantiles_) all.insert(all.end(), quantiles.begin(), quantiles.end());
    std::vector<float> spare(all.size());
    const Quantiles combined = quantiles_of(all, spare);
    std::array<float, 255> borders;
    std::copy_n(combined.begin() + 1, borders.size(), borders.begin());
    borders_.emplace(borders);
  }

 private:
  std::size_t chunk_;
  std::vector<Quantiles> quantiles_;
  std::optional<Borders> borders_;
};

/// Source: hivemind wire spec, section 5.7.
class BlockwiseEncoder final : public Encoder {
 public:
  explicit BlockwiseEncoder(Values values)
      : Encoder(values, kHead + blocks_in(values.size()) * 4 + sizeof(CodeBook) + values.size()),
        blocks_(blocks_in(values.size())) {
    put(out(0), static_cast<std::int64_t>(blocks_));
    put(out(8), 256);
    std::memcpy(out(kHead + blocks_ * 4), dynamic_map().data(), sizeof(CodeBook));
  }

  std::size_t steps(int phase) const override { return phase == 0 ? segments() : 0; }

  void run(int, std::size_t step) override {
    static_assert(Values::kBlock == kScaleBlock && kSegment % kScaleBlock == 0);
    for_blocks(values_, step * kSegment, segment_size(step),
               [&](const float* block, std::size_t first, std::size_t count) {
                 // NaN where a value is not finite: better a block that says so than one that looks healthy.
                 const float largest = kernels().largest(block, count);
                 std::memcpy(out(kHead + first / kScaleBlock * 4), &largest, 4);
                 alignas(64) float scaled[kScaleBlock];
                 const float divisor = largest > 0 ? largest : 1.0f;
                 kernels().divide(block, divisor, scaled, count);
                 dynamic_borders().find_bins(scaled, out(kHead + blocks_ * 4 + sizeof(CodeBook) + first), count);
               });
  }

 private:
  static constexpr std::size_t kHead = 16;
  static std::size_t blocks_in(std::size_t count) { return (count + kScaleBlock - 1) / kScaleBlock; }

  std::size_t blocks_;
};

}  // namespace

std::unique_ptr<Encoder> make_encoder(Codec codec, Values values, std::size_t rows, std::size_t row) {
  switch (codec) {
    case Codec::none:
      return std::make_unique<PlainEncoder>(values);
    case Codec::meanstd16:
      return std::make_unique<MeanStdEncoder>(values, rows, row);
    case Codec::float16:
      return std::make_unique<HalfEncoder>(values);
    case Codec::quantile8:
      return std::make_unique<QuantileEncoder>(values);
    case Codec::uniform8:
      return std::make_unique<UniformEncoder>(values);
    case Codec::blockwise8:
      return std::make_unique<BlockwiseEncoder>(values);
  }
  throw std::logic_error("no such codec");
}

Slice run_encoder(Encoder& encoder) {
  for (int phase = 0; encoder.steps(phase) > 0; ++phase) {
    for (std::size_t step = 0; step < encoder.steps(phase); ++step) encoder.run(phase, step);
    encoder.settle(phase);
  }
  return encoder.take();
}

}  // namespace cohive::codec
