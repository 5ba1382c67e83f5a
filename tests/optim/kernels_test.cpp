// Every family of processors gives the bits of plain arithmetic.
#include "optim/detail/kernels.hpp"

#include "optim/optimized.hpp"
#include "optim/reference.hpp"

namespace cohive::optim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<std::size_t> kCounts = {0, 1, 7, 8, 9, 15, 16, 17, 33, 100, 1000};

/// Normal values, and here and there one that is zero, tiny, huge or not finite.
template <class T>
std::vector<T> odd_values(std::size_t count, unsigned seed) {
  auto values = normal_values<T>(count, seed);
  const float special[] = {0.0f, -0.0f, 1e-45f, 1e-25f, -1e25f, kInfinity, -kInfinity, NAN};
  for (std::size_t i = 5; i < count; i += 11) values[i] = static_cast<T>(special[i / 11 % std::size(special)]);
  return values;
}

class EveryFamily : public testing::TestWithParam<const Kernels*> {
 protected:
  template <class T>
  const StepKernels<T>& steps() {
    if constexpr (std::is_same_v<T, float>)
      return GetParam()->singles;
    else
      return GetParam()->doubles;
  }

  template <class T>
  void expect_plain_sums() {
    for (std::size_t count : kCounts) {
      SCOPED_TRACE(count);
      const auto values = normal_values<T>(count, 3);
      EXPECT_EQ(steps<T>().square_sum(values.data(), count), reference::square_sum(values));
    }
  }

  template <class T>
  void expect_finds_what_is_not_finite() {
    for (std::size_t count : kCounts) {
      auto values = normal_values<T>(count, 4);
      EXPECT_TRUE(steps<T>().all_finite(values.data(), count));
      for (std::size_t at = 0; at < count; at = 2 * at + 1) {
        for (float bad : {kInfinity, -kInfinity, NAN}) {
          const T before = std::exchange(values[at], static_cast<T>(bad));
          EXPECT_FALSE(steps<T>().all_finite(values.data(), count)) << at << " of " << count;
          values[at] = before;
        }
      }
    }
  }
};

TEST_P(EveryFamily, AddsUpSquaresInTheSameOrder) {
  expect_plain_sums<float>();
  expect_plain_sums<double>();
}

TEST_P(EveryFamily, FindsWhatIsNotFinite) {
  expect_finds_what_is_not_finite<float>();
  expect_finds_what_is_not_finite<double>();
  for (const std::uint16_t exponent : {0x7c00, 0x7f80}) {
    for (std::size_t count : {1, 31, 32, 33, 100}) {
      std::vector<std::uint16_t> values(count, 0x3c01);
      EXPECT_TRUE(GetParam()->all_short_finite(values.data(), exponent, count));
      for (std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        const auto before = std::exchange(values[at], static_cast<std::uint16_t>(0x8001 | exponent));
        EXPECT_FALSE(GetParam()->all_short_finite(values.data(), exponent, count)) << at << " of " << count;
        values[at] = before;
      }
    }
  }
}

TEST_P(EveryFamily, AccumulatesAsPlainArithmeticDoes) {
  for (std::size_t count : kCounts) {
    SCOPED_TRACE(count);
    const auto gradient = odd_values<float>(count, 1), before = normal_values<float>(count, 2);
    auto sum = before, fresh = before, expected_sum = before, expected_fresh = before;
    bool finite = true;
    for (std::size_t i = 0; i < count; ++i) {
      const float term = std::isfinite(gradient[i]) ? gradient[i] * 0.3f : 0.0f;
      finite &= std::isfinite(gradient[i]);
      expected_sum[i] = before[i] + term;
      expected_fresh[i] = term;
    }
    EXPECT_EQ(GetParam()->accumulate(gradient.data(), 0.3f, sum.data(), count), finite);
    EXPECT_EQ(GetParam()->replace(gradient.data(), 0.3f, fresh.data(), count), finite);
    expect_same_bits(sum, expected_sum);
    expect_same_bits(fresh, expected_fresh);
  }
}

TEST_P(EveryFamily, StreamsEveryByteToAnyAddress) {
  for (std::size_t count : {0, 1, 63, 64, 65, 127, 128, 1000}) {
    for (std::size_t at : {0, 1, 4, 60}) {
      std::vector<std::uint8_t> from(count), to(count + 128, 0xAA);
      for (std::size_t i = 0; i < count; ++i) from[i] = static_cast<std::uint8_t>(i * 7);
      GetParam()->stream(from.data(), to.data() + at, count);
      auto expected = std::vector<std::uint8_t>(count + 128, 0xAA);
      std::copy(from.begin(), from.end(), expected.begin() + static_cast<std::ptrdiff_t>(at));
      EXPECT_EQ(to, expected) << count << " to " << at;
    }
  }
}

template <class T>
void expect_same(const Optimized<T>& ours, const std::vector<reference::Value<T>>& plain) {
  std::vector<T> expected;
  for (const auto& value : plain) expected.push_back(value.parameter);
  expect_same_bits(ours.parameters, expected);
  for (std::size_t k = 0; k < ours.state.size(); ++k) {
    expected.clear();
    for (const auto& value : plain) expected.push_back(value.state[k]);
    expect_same_bits(ours.state[k], expected);
  }
}

template <class T>
void expect_plain_steps(const Options& options, std::size_t count) {
  Optimized<T> ours(options, normal_values<T>(count, 9));
  std::vector<reference::Value<T>> plain(count);
  for (std::size_t i = 0; i < count; ++i) {
    plain[i].parameter = ours.parameters[i];
    for (std::size_t k = 0; k < ours.state.size(); ++k) plain[i].state[k] = ours.state[k][i];
  }
  const bool whole = std::holds_alternative<LambOptions>(options);  // one value that is not finite would spoil all
  for (std::int64_t step = 1; step <= 4; ++step) {
    const auto seed = static_cast<unsigned>(step);
    auto gradient = whole ? normal_values<T>(count, seed) : odd_values<T>(count, seed);
    ours.step(gradient, {.step = step, .gradient_factor = 0.37});
    for (T& g : gradient) g = g * static_cast<T>(0.37);
    std::visit([&](const auto& o) { reference::step(o, step, gradient, plain); }, options);
    expect_same(ours, plain);
  }
}

TEST_P(EveryFamily, StepsAsPlainArithmeticDoes) {
  const KernelsInUse family(*GetParam());
  for (const Options& options : all_options()) {
    SCOPED_TRACE(describe(options));
    for (std::size_t count : {1, 15, 100, 2500}) {
      SCOPED_TRACE(count);
      expect_plain_steps<float>(options, count);
      expect_plain_steps<double>(options, count);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryFamily, testing::ValuesIn(all_kernels().begin(), all_kernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace cohive::optim
