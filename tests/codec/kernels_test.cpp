// Every family of processors gets the same bits.
#include "codec/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "codec/bins.hpp"
#include "codec/half.hpp"

namespace cohive::codec {
namespace {

const std::vector<std::size_t> kCounts = {0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 100, 1000, 4097};

std::vector<float> odd_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f, -0.0f, kInfinity, -kInfinity, NAN, 65504, 65520, -70000, 1e-45f, -1e-40f, 3e38f};
  for (float& value : values)
    value = random() % 8 == 0
                ? special[random() % std::size(special)]
                : std::ldexp(static_cast<float>(random()) / 4e9f - 0.5f, static_cast<int>(random() % 44) - 24);
  return values;
}

std::vector<float> plain_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.3f, 2.0f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

template <class T>
void expect_same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if constexpr (std::is_same_v<T, float>) {
      if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    }
    ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(T)), 0) << i;
  }
}

TEST(Half, EveryHalfSurvivesTheWayToFloatAndBack) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = float_from_half(half);
    if (std::isnan(value)) continue;
    ASSERT_EQ(half_from_float(value), half);
  }
}

class EveryFamily : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& ours() { return *GetParam(); }
};

TEST_P(EveryFamily, ConvertsToHalvesAndBackAsPlainArithmeticDoes) {
  for (std::size_t count : kCounts) {
    SCOPED_TRACE(count);
    const auto values = odd_floats(count, 1);
    std::vector<std::uint8_t> a(2 * count), b(2 * count);
    for (auto convert : {&Kernels::to_half, &Kernels::to_half_unclamped}) {
      (ours().*convert)(values.data(), a.data(), count);
      (kScalarKernels.*convert)(values.data(), b.data(), count);
      expect_same_bits(a, b);
    }
    ours().to_half(values.data(), a.data(), count);
    const bool finite = ours().to_half_checked(values.data(), b.data(), count);
    expect_same_bits(a, b);
    EXPECT_EQ(finite, std::ranges::all_of(values, [](float value) { return std::isfinite(value); }));
    std::vector<float> x(count), y(count);
    ours().from_half(a.data(), x.data(), count);
    kScalarKernels.from_half(a.data(), y.data(), count);
    expect_same_bits(x, y);
  }
}

TEST_P(EveryFamily, ScalesAddsAndLooksUpAlike) {
  for (std::size_t count : kCounts) {
    SCOPED_TRACE(count);
    const auto values = plain_floats(count, 2), base = plain_floats(count, 3);
    std::vector<std::uint8_t> halves(2 * count), other(2 * count), raw(4 * count), raw_other(4 * count);
    ours().scaled_to_half(values.data(), 0.3f, 1.7f, halves.data(), count);
    kScalarKernels.scaled_to_half(values.data(), 0.3f, 1.7f, other.data(), count);
    expect_same_bits(halves, other);
    ours().difference(values.data(), base.data(), raw.data(), count);
    kScalarKernels.difference(values.data(), base.data(), raw_other.data(), count);
    expect_same_bits(raw, raw_other);
    std::vector<std::uint8_t> less(2 * count), less_other(2 * count);
    ours().half_difference(values.data(), halves.data(), less.data(), count);
    kScalarKernels.half_difference(values.data(), halves.data(), less_other.data(), count);
    expect_same_bits(less, less_other);

    std::vector<std::uint8_t> indices(count);
    for (std::size_t i = 0; i < count; ++i) indices[i] = static_cast<std::uint8_t>(i * 37);
    const auto table = plain_floats(256, 4);
    for (auto* sum : {&raw, &raw_other}) {
      const Kernels* kernels = sum == &raw ? &ours() : &kScalarKernels;
      std::vector<float> total = base, part(count);
      kernels->scaled_from_half(halves.data(), 0.3f, 1.7f, part.data(), count);
      kernels->divide(part.data(), 0.3f, part.data(), count);
      kernels->add_half(halves.data(), 0.7f, total.data(), count);
      kernels->add_scaled_half(halves.data(), 0.3f, 1.7f, 0.7f, total.data(), count);
      kernels->add_floats(reinterpret_cast<const std::uint8_t*>(part.data()), 1.1f, total.data(), count);
      kernels->add_looked_up(indices.data(), table.data(), total.data(), count);
      kernels->look_up(indices.data(), table.data(), part.data(), count);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(part[i], table[indices[i]]);
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(total.data());
      std::copy_n(bytes, 4 * count, sum->begin());
    }
    expect_same_bits(raw, raw_other);
  }
}

TEST_P(EveryFamily, QuantizesAlikeWhateverTheValueIs) {
  for (std::size_t count : kCounts) {
    SCOPED_TRACE(count);
    auto values = odd_floats(count, 5);
    for (std::size_t i = 0; i < count; i += 3) values[i] = static_cast<float>(i % 512) * 0.5f - 128;  // halfway cases
    std::vector<std::uint8_t> a(count + 1, 0xAA), b(count + 1, 0xAA);
    for (float inverse : {1.0f, 42.5f, NAN, std::numeric_limits<float>::infinity()}) {
      ours().quantize(values.data(), 0.0f, inverse, a.data(), count);
      kScalarKernels.quantize(values.data(), 0.0f, inverse, b.data(), count);
      expect_same_bits(a, b);
    }
  }
}

TEST_P(EveryFamily, FindsTheBinThatCountingBordersFinds) {
  auto borders = odd_floats(255, 7);
  std::erase_if(borders, [](float border) { return std::isnan(border); });
  while (borders.size() < 255) borders.push_back(1.0f);
  std::sort(borders.begin(), borders.end());
  const Borders search([&] {
    std::array<float, 255> all;
    std::copy(borders.begin(), borders.end(), all.begin());
    return all;
  }());
  for (std::size_t count : kCounts) {
    SCOPED_TRACE(count);
    auto values = odd_floats(count, 8);
    for (std::size_t i = 0; i < count; i += 2) values[i] = borders[i % borders.size()];
    std::vector<std::uint8_t> bins(count);
    ours().find_bins(values.data(), search.tree().data(), bins.data(), count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto less = std::count_if(borders.begin(), borders.end(), [&](float border) { return border < values[i]; });
      ASSERT_EQ(bins[i], less) << values[i];
    }
  }
}

TEST_P(EveryFamily, MeasuresAlikeAndSeesEveryValueThatIsNotFinite) {
  for (std::size_t count : kCounts) {
    SCOPED_TRACE(count);
    auto values = plain_floats(count, 6);
    const Moments mine = ours().moments(values.data(), 0.25f, count);
    const Moments plain = kScalarKernels.moments(values.data(), 0.25f, count);
    EXPECT_EQ(mine.sum, plain.sum);
    EXPECT_EQ(mine.squares, plain.squares);
    EXPECT_EQ(ours().largest(values.data(), count), kScalarKernels.largest(values.data(), count));
    EXPECT_TRUE(ours().all_finite(values.data(), count));
    for (float bad : {NAN, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      for (std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        if (count == 0) continue;
        const float before = std::exchange(values[at], bad);
        EXPECT_FALSE(ours().all_finite(values.data(), count)) << at;
        EXPECT_TRUE(std::isnan(ours().largest(values.data(), count))) << at;
        values[at] = before;
      }
    }
  }
}

TEST_P(EveryFamily, SeesEveryHalfThatIsNotFinite) {
  for (std::size_t count : kCounts) {
    if (count == 0) continue;
    SCOPED_TRACE(count);
    const auto values = plain_floats(count, 7);
    std::vector<std::uint8_t> halves(2 * count);
    kScalarKernels.to_half(values.data(), halves.data(), count);
    EXPECT_TRUE(ours().all_halves_finite(halves.data(), count));
    for (const std::uint16_t bad : {0x7c00, 0xfc00, 0x7e00, 0xfc01}) {  // infinities, a quiet and a signalling NaN
      for (std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        auto sick = halves;
        std::memcpy(&sick[2 * at], &bad, 2);
        EXPECT_FALSE(ours().all_halves_finite(sick.data(), count)) << at;
      }
    }
  }
  EXPECT_TRUE(ours().all_halves_finite(nullptr, 0));
}

TEST_P(EveryFamily, FindsTheMagnitudesThatReachABound) {
  for (std::size_t count : kCounts) {
    SCOPED_TRACE(count);
    auto values = odd_floats(count, 9);
    std::erase_if(values, [](float value) { return !std::isfinite(value); });
    for (float least : {1e-45f, 1e-40f, 1e-3f, 0.25f, 65504.0f, 3e38f}) {
      std::vector<std::uint16_t> wanted, places(values.size() + 1, 0xAAAA);
      for (std::size_t i = 0; i < values.size(); ++i)
        if (std::fabs(values[i]) >= least) wanted.push_back(static_cast<std::uint16_t>(i));
      EXPECT_EQ(ours().count_from(values.data(), least, values.size()), wanted.size()) << least;
      ASSERT_EQ(ours().places_from(values.data(), least, places.data(), values.size()), wanted.size()) << least;
      EXPECT_EQ(places.back(), 0xAAAA) << "nothing is written behind";
      places.resize(wanted.size());
      EXPECT_EQ(places, wanted) << least;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryFamily, testing::ValuesIn(all_kernels().begin(), all_kernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace cohive::codec
