#include "cohive/optim/passes.hpp"

#include <stdexcept>

#include "codec/half.hpp"
#include "optim/reference.hpp"

namespace cohive::optim {
namespace {

constexpr std::size_t kCount = 2100;
const DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16, DType::float64};

/// Values of a dtype and, as float32, what it made of them.
class Typed {
 public:
  Typed(DType dtype, const std::vector<float>& values) : dtype_(dtype) {
    for (float value : values) push_back(value);
  }
  View view() { return View(dtype_, bytes_.data(), floats_.size()); }
  const std::vector<float>& floats() const { return floats_; }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  void push_back(float value) {
    switch (dtype_) {
      case DType::float64:
        return push_back(static_cast<double>(value), value);
      case DType::float32:
        return push_back(value, value);
      case DType::float16:
        return push_back(codec::half_from_float(value), codec::float_from_half(codec::half_from_float(value)));
      default:
        return push_back(codec::bfloat_from_float(value), codec::float_from_bfloat(codec::bfloat_from_float(value)));
    }
  }
  template <class T>
  void push_back(T typed, float value) {
    const auto* first = reinterpret_cast<const std::uint8_t*>(&typed);
    bytes_.insert(bytes_.end(), first, first + sizeof typed);
    floats_.push_back(value);
  }
  DType dtype_;
  std::vector<std::uint8_t> bytes_;
  std::vector<float> floats_;
};

TEST(Accumulate, AddsGradientsOfEveryTypeWithAFactor) {
  for (DType dtype : kDTypes) {
    SCOPED_TRACE(codec::name_of(dtype));
    Typed gradient(dtype, normal_values<float>(kCount, 1));
    auto sum = normal_values<float>(kCount, 2), expected = sum, replaced = sum;
    for (std::size_t i = 0; i < kCount; ++i) expected[i] = sum[i] + 0.1f * gradient.floats()[i];
    EXPECT_TRUE(accumulate(gradient.view(), sum, {.factor = 0.1}));
    expect_same_bits(sum, expected);
    EXPECT_TRUE(accumulate(gradient.view(), replaced, {.factor = 1, .first = true}));
    expect_same_bits(replaced, gradient.floats());
  }
}

TEST(Accumulate, FillsALargeSumAsItDoesASmallOne) {
  auto gradient = normal_values<float>(100'000, 1);
  std::vector<float> large(gradient.size() + 1), small(large);
  EXPECT_TRUE(accumulate(std::span<float>(gradient), std::span(large).subspan(1), {.factor = 0.3, .first = true}));
  for (std::size_t i = 0; i < gradient.size(); i += 1000)
    accumulate(std::span(gradient).subspan(i, 1000), std::span(small).subspan(1 + i, 1000),
               {.factor = 0.3, .first = true});
  expect_same_bits(large, small);
}

TEST(Accumulate, ClearsTheGradientInTheSamePass) {
  for (DType dtype : kDTypes) {
    Typed gradient(dtype, normal_values<float>(kCount, 1));
    std::vector<float> sum(kCount);
    EXPECT_TRUE(accumulate(gradient.view(), sum, {.clear = true}));
    expect_same_bits(sum, gradient.floats());
    EXPECT_EQ(gradient.bytes(), std::vector<std::uint8_t>(gradient.bytes().size()));
  }
}

TEST(Accumulate, LeavesOutValuesThatAreNotFiniteSoThatTheBatchCanBeTakenBack) {
  for (DType dtype : kDTypes) {
    for (float bad : {INFINITY, -INFINITY, NAN}) {
      auto values = normal_values<float>(kCount, 1);
      values[kCount - 3] = bad;
      Typed gradient(dtype, values);
      const auto before = normal_values<float>(kCount, 2);
      auto sum = before;
      EXPECT_FALSE(accumulate(gradient.view(), sum, {.factor = 2}));
      EXPECT_EQ(sum[kCount - 3], before[kCount - 3]);
      EXPECT_NE(sum[0], before[0]);
      EXPECT_FALSE(accumulate(gradient.view(), sum, {.factor = -2}));
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(sum[i], before[i], 1e-5);
    }
  }
  std::vector<double> large(kCount, 1e300);  // infinite as float32
  std::vector<float> sum(kCount);
  EXPECT_FALSE(accumulate(std::span<double>(large), sum));
}

TEST(Accumulate, RefusesASumOfAnotherSize) {
  auto gradient = normal_values<float>(kCount, 1);
  std::vector<float> sum(kCount + 1);
  EXPECT_THROW(accumulate(std::span<float>(gradient), sum), std::invalid_argument);
}

TEST(Scale, UnscalesAndTellsOfOverflow) {
  for (DType dtype : kDTypes) {
    SCOPED_TRACE(codec::name_of(dtype));
    auto values = normal_values<float>(kCount, 1);
    for (float& value : values) value *= 1024;
    Typed gradient(dtype, values);
    auto expected = gradient.floats();
    for (float& value : expected) value *= 1.0f / 1024;
    EXPECT_TRUE(scale(gradient.view(), 1.0 / 1024));
    EXPECT_EQ(gradient.bytes(), Typed(dtype, expected).bytes());
    values[kCount / 2] = INFINITY;
    Typed overflown(dtype, values);
    EXPECT_FALSE(scale(overflown.view(), 1.0 / 1024));
  }
  Typed large(DType::float16, std::vector<float>(kCount, 60000));
  EXPECT_FALSE(scale(large.view(), 2)) << "the product is finite, but not as float16";
}

TEST(AllFinite, LooksAtEveryValueOfEveryType) {
  for (DType dtype : kDTypes) {
    auto values = normal_values<float>(kCount, 1);
    EXPECT_TRUE(all_finite(Typed(dtype, values).view()));
    for (std::size_t at : {std::size_t{0}, kCount / 2, kCount - 1}) {
      const float before = std::exchange(values[at], NAN);
      EXPECT_FALSE(all_finite(Typed(dtype, values).view())) << at;
      values[at] = before;
    }
  }
  EXPECT_TRUE(all_finite(ConstView()));
}

TEST(SquareSum, IsThatOfTheDocumentedOrder) {
  for (DType dtype : kDTypes) {
    SCOPED_TRACE(codec::name_of(dtype));
    Typed values(dtype, normal_values<float>(kCount, 1));
    const std::vector<double> doubles(values.floats().begin(), values.floats().end());
    EXPECT_EQ(square_sum(values.view()),
              dtype == DType::float64 ? reference::square_sum(doubles) : reference::square_sum(values.floats()));
  }
}

TEST(ClipCoefficient, BringsTheNormDownToItsLimitAndNeverUp) {
  auto values = normal_values<float>(kCount, 1);
  const double norm = std::sqrt(square_sum(std::span<const float>(values)));
  scale(std::span<float>(values), clip_coefficient(norm * norm, 0.5));
  EXPECT_NEAR(std::sqrt(square_sum(std::span<const float>(values))), 0.5, 1e-6);
  EXPECT_EQ(clip_coefficient(0.25 * 0.25, 0.5), 1);
  EXPECT_TRUE(std::isnan(clip_coefficient(NAN, 0.5)));
}

TEST(Copy, ConvertsBetweenAllTypes) {
  auto values = normal_values<float>(kCount, 1);
  values[7] = 1e30f;  // infinite as float16
  values[8] = NAN;
  values[9] = -INFINITY;
  for (DType from : kDTypes) {
    for (DType to : kDTypes) {
      SCOPED_TRACE(std::string(codec::name_of(from)) + " to " + std::string(codec::name_of(to)));
      Typed source(from, values), target(to, std::vector<float>(kCount));
      copy(source.view(), target.view());
      EXPECT_EQ(target.bytes(), Typed(to, source.floats()).bytes());
    }
  }
  const std::vector<double> exact(100'000, 1 + 1e-12);
  std::vector<double> copied(exact.size());
  copy(std::span<const double>(exact), std::span<double>(copied));
  EXPECT_EQ(copied, exact);
}

}  // namespace
}  // namespace cohive::optim
