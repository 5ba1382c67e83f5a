#include "averaging/schemes/low_rank.hpp"

#include <gmock/gmock.h>

#include <limits>
#include <random>

#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/power_sgd.hpp"
#include "cohive/averaging/scheme.hpp"
#include "cohive/core/sim_runtime.hpp"

namespace cohive::averaging {
namespace {

std::vector<float> noise(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// ---- Products

class Products : public ::testing::TestWithParam<std::tuple<MatrixShape, std::size_t>> {};

TEST_P(Products, AreThoseOfPlainLoops) {
  const auto [shape, rank] = GetParam();
  const auto [m, n] = shape;
  const auto a = noise(m * n, 1), q = noise(rank * n, 2);
  std::vector<float> p(m * rank, 7), sums = q, product(m * n);
  project(a, {q, rank, n}, p);
  gather(a, p, FactorQ<float>{sums, rank, n});
  expand(p, {q, rank, n}, product);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t c = 0; c < rank; ++c) {
      double sum = 0, size = 0;
      for (std::size_t j = 0; j < n; ++j) {
        const double term = static_cast<double>(a[i * n + j]) * q[c * n + j];
        sum += term, size += std::abs(term);
      }
      ASSERT_NEAR(p[i * rank + c], sum, 1e-6 * size) << i << " " << c;
    }
  }
  for (std::size_t c = 0; c < rank; ++c) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = q[c * n + j], size = std::abs(sum);
      for (std::size_t i = 0; i < m; ++i) {
        const double term = static_cast<double>(a[i * n + j]) * p[i * rank + c];
        sum += term, size += std::abs(term);
      }
      ASSERT_NEAR(sums[c * n + j], sum, 1e-6 * size) << c << " " << j;
    }
  }
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      for (std::size_t c = 0; c < rank; ++c) {
        const double term = static_cast<double>(p[i * rank + c]) * q[c * n + j];
        sum += term, size += std::abs(term);
      }
      ASSERT_NEAR(product[i * n + j], sum, 1e-6 * size) << i << " " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Products,
                         ::testing::Combine(::testing::Values(MatrixShape{1, 1}, MatrixShape{4, 16}, MatrixShape{5, 67},
                                                              MatrixShape{33, 130}, MatrixShape{7, 1000},
                                                              MatrixShape{300, 3}),
                                            ::testing::Values(1, 2, 3, 4, 17, 32)));

TEST(Orthogonalise, GivesTheColumnsThatHivemindGives) {
  std::vector<float> rows{1, 3, 5, 2, 4, 6};  // the columns of [[1, 2], [3, 4], [5, 6]]
  orthogonalise_rows(rows, 2, 3);
  const float expected[] = {0.16903f, 0.50709f, 0.84515f, 0.89709f, 0.27603f, -0.34503f};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(rows[i], expected[i], 1e-5);
}

TEST(Orthogonalise, MakesRowsOfLengthOneAtRightAngles) {
  for (std::size_t length : {40u, 1000u, 4099u}) {
    constexpr std::size_t kRank = 32;
    auto rows = noise(kRank * length, 3);
    for (std::size_t i = 0; i < length; ++i) rows[i] += 5;  // not small, and all alike
    orthogonalise_rows(rows, kRank, length);
    for (std::size_t a = 0; a < kRank; ++a) {
      for (std::size_t b = 0; b < kRank; ++b) {
        double dot = 0;
        for (std::size_t i = 0; i < length; ++i)
          dot += static_cast<double>(rows[a * length + i]) * rows[b * length + i];
        ASSERT_NEAR(dot, a == b ? 1 : 0, 2e-5) << a << " " << b << " of " << length;
      }
    }
  }
}

TEST(Orthogonalise, LeavesRowsOfZerosAsTheyAre) {
  std::vector<float> rows(3 * 50);
  rows[60] = 2;
  orthogonalise_rows(rows, 3, 50);
  EXPECT_EQ(rows[60], 1);
  rows[60] = 0;
  EXPECT_THAT(rows, ::testing::Each(0));
}

TEST(Transposing, TwiceChangesNothing) {
  const auto values = noise(37 * 65, 4);
  std::vector<float> columns(values.size()), again(values.size());
  transpose(values, 37, 65, columns);
  EXPECT_EQ(columns[3 * 37 + 2], values[2 * 65 + 3]);
  transpose(columns, 65, 37, again);
  EXPECT_EQ(again, values);
}

// ---- What is compressed

TEST(MatrixOf, MergesTheSmallestNeighboursFirst) {
  const auto dims = [](codec::Shape shape) {
    const auto [rows, columns] = matrix_of(shape);
    return std::pair(rows, columns);
  };
  EXPECT_EQ(dims({5, 9}), std::pair(5ul, 9ul));
  EXPECT_EQ(dims({2, 3, 4}), std::pair(6ul, 4ul));
  EXPECT_EQ(dims({64, 3, 7, 7}), std::pair(64ul, 147ul));
  EXPECT_EQ(dims({4, 4, 4}), std::pair(16ul, 4ul)) << "the first of equals";
  EXPECT_EQ(dims({512, 512, 3, 3}), std::pair(512ul, 4608ul));
}

std::vector<std::size_t> compressed(std::vector<codec::Shape> shapes, PowerSgdOptions options) {
  std::vector<TensorInfo> schema;
  for (auto& shape : shapes) schema.push_back({shape});
  return PowerSgd(schema, options).compressed();
}

TEST(PowerSgdOptions, ChooseWhatIsCompressed) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  EXPECT_THAT(compressed({{100}, {}, {100, 100}, {5, 5}, {0, 9}, {64, 3, 7, 7}}, {4, 0.5}), ElementsAre(2, 5));
  EXPECT_THAT(compressed({{100, 100}}, {25, 0.5}), ElementsAre(0)) << "saves a half";
  EXPECT_THAT(compressed({{100, 100}}, {26, 0.5}), IsEmpty());
  EXPECT_THAT(compressed({{100, 100}}, {26, 0.4}), ElementsAre(0));
  EXPECT_THAT(compressed({{100, 100}}, {1, 1}), IsEmpty());
}

TEST(PowerSgdOptions, ThatMakeNoSenseAreRefused) {
  for (const PowerSgdOptions& options : {PowerSgdOptions{0}, PowerSgdOptions{5000}, PowerSgdOptions{4, -0.1},
                                         PowerSgdOptions{4, 1.1}, PowerSgdOptions{4, NAN}})
    EXPECT_THROW(PowerSgd({}, options), std::invalid_argument);
}

// ---- Averages that are too large

/// Computes nothing, and tells whether a product was to become the tensor's result.
class FactorsElsewhere final : public FactoredTensor {
 public:
  explicit FactorsElsewhere(bool& applied) : applied_(applied) {}
  Task<Result<>> project(std::span<const float>, std::span<float>) override { co_return ok(); }
  Task<Result<>> take_average(std::span<const float>) override { co_return ok(); }
  Task<Result<>> gather(std::span<float>) override { co_return ok(); }
  Task<Result<>> apply(std::span<const float>, bool) override {
    applied_ = true;
    co_return ok();
  }

 private:
  bool& applied_;
};

/// A matrix in a memory that multiplies, as a device's does.
class MatrixElsewhere final : public TensorParts {
 public:
  const std::vector<TensorInfo>& infos() const noexcept override { return infos_; }
  Task<Result<EncodedStretch>> encode(Stretch, codec::CodecSpec) override { co_return Error(Errc::refused); }
  Task<Result<std::shared_ptr<OwnContribution>>> contribute(Stretch, codec::CodecSpec, Terms) override {
    co_return Error(Errc::refused);
  }
  Task<Result<>> apply(Stretch, Answer, Terms) override { co_return Error(Errc::refused); }
  std::unique_ptr<FactoredTensor> factored(std::size_t, FactorForm, codec::Residuals&) override {
    return std::make_unique<FactorsElsewhere>(applied);
  }
  Task<void> finish() override { co_return; }
  bool applied = false;

 private:
  const std::vector<TensorInfo> infos_ = std::vector<TensorInfo>(1, TensorInfo{.shape = {40, 30}});
};

/// A round in which all members have the same value everywhere in one phase.
class OneValueRound final : public RoundContext {
 public:
  OneValueRound(Runtime& runtime, TensorParts& tensors, std::string phase, float value)
      : runtime_(runtime), tensors_(tensors), phase_(std::move(phase)), value_(value) {}
  Runtime& runtime() const noexcept override { return runtime_; }
  const Group& group() const noexcept override { return group_; }
  std::size_t own_index() const noexcept override { return 0; }
  const Terms& terms() const noexcept override { return terms_; }
  TensorParts& tensors() const noexcept override { return tensors_; }
  Task<Result<>> all_reduce(TensorParts& tensors, std::string phase) override {
    if (phase != phase_) co_return ok();
    const Stretch all{0, 0, tensors.infos()[0].elements()};
    co_return co_await apply_average(tensors, all, std::vector<float>(all.length, value_), terms_);
  }

 private:
  Runtime& runtime_;
  TensorParts& tensors_;
  const std::string phase_;
  const float value_;
  const Terms terms_ = {};
  const Group group_ = {};
};

class LargeAverages : public ::testing::TestWithParam<const char*> {};

TEST_P(LargeAverages, AreRefusedWhereNoFloatMayHoldTheirProduct) {
  SimRuntime runtime;
  const auto outcome = [&](float value) {
    MatrixElsewhere matrix;
    PowerSgd sgd(matrix.infos(), {3, 0.3});
    OneValueRound round(runtime, matrix, GetParam(), value);
    const auto done = runtime.run(sgd.scheme()(round));
    EXPECT_EQ(matrix.applied, done.has_value());
    return done ? std::error_code() : done.error().code();
  };
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(outcome(most), make_error_code(Errc::not_finite));
  EXPECT_EQ(outcome(-most / 3), make_error_code(Errc::not_finite));
  EXPECT_EQ(outcome(most / 100), std::error_code());
}

INSTANTIATE_TEST_SUITE_P(Phases, LargeAverages, ::testing::Values("PHASE_P", "PHASE_Q"));

// ---- Factors that are shared

struct SharedFactors : ::testing::Test {
  std::vector<TensorInfo> schema{{{40, 30}}, {{9}}, {{8, 10, 3, 3}}};
  PowerSgdOptions options{3, 0.3};
  PowerSgd ours{schema, options};
  SimRuntime runtime{{}};

  DownloadedState downloaded() {
    auto shared = ours.provider("01")();
    return {{}, shared->metadata, shared->tensors, 0, {}, {}, 0};
  }
  std::vector<Bytes> factors(const PowerSgd& sgd) {
    std::vector<Bytes> all;
    const auto shared = sgd.provider("")();
    for (const auto& tensor : shared->tensors)
      all.emplace_back(tensor.data.data(), tensor.data.data() + tensor.data.size());
    return all;
  }
};

TEST_F(SharedFactors, AreTheSameForAllPeersAtFirst) {
  const auto shared = ours.provider("01")();
  ASSERT_EQ(shared->tensors.size(), 2u);
  EXPECT_EQ(shared->tensors[0].shape, (codec::Shape{30, 3}));
  EXPECT_EQ(shared->tensors[1].shape, (codec::Shape{9, 3}));
  EXPECT_EQ(ours.state_bytes(), (30 + 9) * 3 * 4u);
  EXPECT_EQ(factors(ours), factors(PowerSgd(schema, options)));
  EXPECT_NE(factors(ours)[0], factors(ours)[1]);
}

TEST_F(SharedFactors, AreLoadedAsTheyWere) {
  auto state = downloaded();
  const auto values = noise(30 * 3, 5);
  state.tensors[0].data = Slice::copy_of({reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * 4});
  PowerSgd newcomer(schema, options);
  ASSERT_TRUE(runtime.run(newcomer.load(runtime, state)));
  const auto loaded = factors(newcomer);
  EXPECT_EQ(std::memcmp(loaded[0].data(), values.data(), loaded[0].size()), 0);
  EXPECT_EQ(loaded[1], factors(ours)[1]);
}

TEST_F(SharedFactors, OfADonorThatLiesAreRefused) {
  const auto before = factors(ours);
  auto fewer = downloaded();
  fewer.tensors.pop_back();
  auto other_rank = downloaded();
  other_rank.tensors[1].shape = {3, 9};
  auto too_short = downloaded();
  too_short.tensors[0].data = too_short.tensors[0].data.sub(0, 100);
  auto other_dtype = downloaded();
  other_dtype.tensors[0].dtype = codec::DType::int32;
  auto not_finite = downloaded();
  Slice bytes = Slice::copy_of(not_finite.tensors[1].data.view());
  const float infinite = INFINITY;
  std::memcpy(bytes.mutable_data() + 8, &infinite, 4);
  not_finite.tensors[1].data = bytes;
  for (auto& state : {fewer, other_rank, too_short, other_dtype, not_finite}) {
    const auto loaded = runtime.run(ours.load(runtime, state));
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error(), Errc::bad_state);
  }
  EXPECT_EQ(factors(ours), before);
}

}  // namespace
}  // namespace cohive::averaging
