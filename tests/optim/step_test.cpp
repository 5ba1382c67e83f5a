#include "cohive/optim/step.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "cohive/optim/passes.hpp"
#include "optim/optimized.hpp"
#include "optim/reference.hpp"

namespace cohive::optim {
namespace {

constexpr std::size_t kParameters = 5000;  // several blocks, and a part of one

/// Cuts [0, count) at random places; the pieces in random order.
std::vector<std::pair<std::size_t, std::size_t>> pieces(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::size_t> cuts{0, count};
  for (int i = 0; i < 20; ++i) cuts.push_back(random() % count);
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::pair<std::size_t, std::size_t>> result;
  for (std::size_t i = 1; i < cuts.size(); ++i) result.emplace_back(cuts[i - 1], cuts[i] - cuts[i - 1]);
  std::shuffle(result.begin(), result.end(), random);
  return result;
}

void make_in_pieces(TensorStep step, unsigned seed) {
  for (auto [offset, count] : pieces(step.size(), seed)) step.run(offset, count);
  if (!step.has_second_phase()) return;
  step.settle();
  for (auto [offset, count] : pieces(step.size(), seed + 1)) step.finish(offset, count);
}

template <class T>
void expect_same_optimized(const Optimized<T>& a, const Optimized<T>& b) {
  expect_same_bits(a.parameters, b.parameters);
  for (std::size_t i = 0; i < a.state.size(); ++i) expect_same_bits(a.state[i], b.state[i]);
}

template <class T>
void expect_pieces_make_the_same_step(const Options& options) {
  Optimized<T> whole(options, normal_values<T>(kParameters, 1)), cut = whole;
  for (unsigned step = 1; step <= 3; ++step) {
    auto gradient = normal_values<T>(kParameters, 10 + step);
    whole.step(gradient, {.step = step});
    make_in_pieces(TensorStep(options, cut.memory(std::span<T>(gradient)), {.step = step}), step);
  }
  expect_same_optimized(whole, cut);
}

TEST(Step, IsTheSameInWhateverPiecesItIsMade) {
  for (const Options& options : all_options()) {
    SCOPED_TRACE(describe(options));
    expect_pieces_make_the_same_step<float>(options);
    expect_pieces_make_the_same_step<double>(options);
  }
}

TEST(Step, WritesParametersElsewhereAndLeavesThoseItReads) {
  for (const Options& options : all_options()) {
    SCOPED_TRACE(describe(options));
    Optimized<float> in_place(options, normal_values<float>(kParameters, 1)), elsewhere = in_place;
    const auto before = elsewhere.parameters;
    auto gradient = normal_values<float>(kParameters, 2);
    std::vector<float> result(kParameters);
    std::vector<std::uint16_t> copy(kParameters), expected_copy(kParameters);
    TensorMemory memory = elsewhere.memory(std::span<float>(gradient));
    memory.result = std::span<float>(result);
    memory.copy = View(DType::bfloat16, copy.data(), kParameters);
    elsewhere.make(TensorStep(options, memory, {.step = 1}));
    in_place.step(gradient, {.step = 1});
    expect_same_bits(elsewhere.parameters, before);
    expect_same_bits(result, in_place.parameters);
    optim::copy(std::span<const float>(result), View(DType::bfloat16, expected_copy.data(), kParameters));
    expect_same_bits(copy, expected_copy);
  }
}

TEST(Step, ClearsTheGradientThatItRead) {
  for (const Options& options : all_options()) {
    SCOPED_TRACE(describe(options));
    Optimized<float> kept(options, normal_values<float>(kParameters, 1)), cleared = kept;
    auto gradient = normal_values<float>(kParameters, 2);
    kept.step(gradient, {.step = 1});
    cleared.make(TensorStep(options, cleared.memory(std::span<float>(gradient)), {.step = 1, .clear_gradient = true}));
    expect_same_optimized(kept, cleared);
    EXPECT_EQ(gradient, std::vector<float>(kParameters));
  }
}

/// Values of a dtype, as bytes, and what they are as float32.
struct TypedTensor {
  TypedTensor(DType type, const std::vector<float>& values) : dtype(type), bytes(values.size() * codec::size_of(type)) {
    copy(std::span<const float>(values), view());
  }
  View view() { return View(dtype, bytes.data(), bytes.size() / codec::size_of(dtype)); }
  std::vector<float> floats() {
    std::vector<float> values(view().size());
    copy(view(), std::span<float>(values));
    return values;
  }
  DType dtype;
  std::vector<std::uint8_t> bytes;
};

TEST(Step, ReadsGradientsOfEveryType) {
  for (const Options& options : all_options()) {
    for (DType dtype : {DType::float16, DType::bfloat16, DType::float64}) {
      SCOPED_TRACE(describe(options) + std::string(codec::name_of(dtype)));
      Optimized<float> typed(options, normal_values<float>(kParameters, 1)), plain = typed;
      TypedTensor gradient(dtype, normal_values<float>(kParameters, 2));
      typed.make(TensorStep(options, typed.memory(gradient.view()), {.step = 1, .gradient_factor = 0.5}));
      plain.step(gradient.floats(), {.step = 1, .gradient_factor = 0.5});
      expect_same_optimized(typed, plain);
    }
  }
}

TEST(Step, RoundsTheParametersOfAHalfPrecisionModelOncePerStep) {
  for (const Options& options : all_options()) {
    for (DType dtype : {DType::float16, DType::bfloat16}) {
      SCOPED_TRACE(describe(options) + std::string(codec::name_of(dtype)));
      TypedTensor model(dtype, normal_values<float>(kParameters, 1));
      TypedTensor gradient(dtype, normal_values<float>(kParameters, 2));
      Optimized<float> plain(options, model.floats()), typed = plain;
      TensorMemory memory = typed.memory(gradient.view());
      memory.parameters = model.view();
      memory.result = model.view();
      typed.make(TensorStep(options, memory, {.step = 1}));
      plain.step(gradient.floats(), {.step = 1});
      EXPECT_EQ(model.bytes, TypedTensor(dtype, plain.parameters).bytes);
      for (std::size_t i = 0; i < plain.state.size(); ++i) expect_same_bits(plain.state[i], typed.state[i]);
    }
  }
}

TEST(Step, OfAFloat64ModelLosesNothingToSinglePrecision) {
  Optimized<double> model(SgdOptions{.lr = 1}, std::vector<double>(kParameters, 1));
  model.step(std::vector<double>(kParameters, 1e-12), {.step = 1});
  EXPECT_EQ(model.parameters, std::vector<double>(kParameters, 1 - 1e-12));
  // An average comes as float32, whatever the model is.
  std::vector<float> average(kParameters, 0.5f);
  model.make(TensorStep(model.options, model.memory(std::span<float>(average)), {.step = 2}));
  EXPECT_EQ(model.parameters, std::vector<double>(kParameters, 1 - 1e-12 - 0.5));
}

TEST(Lamb, MovesATensorByTheLearningRateTimesItsOwnNorm) {
  const std::size_t count = 10000;
  Optimized<float> model(LambOptions{.lr = 0.1, .weight_decay = 0}, normal_values<float>(count, 1));
  const auto before = model.parameters;
  model.step(normal_values<float>(count, 2), {.step = 1});
  std::vector<float> moved(count);
  for (std::size_t i = 0; i < count; ++i) moved[i] = model.parameters[i] - before[i];
  const double ratio =
      std::sqrt(square_sum(std::span<const float>(moved)) / square_sum(std::span<const float>(before)));
  EXPECT_NEAR(ratio, 0.1, 1e-6);
}

TEST(Lamb, MovesATensorOfZerosAsAdamDoes) {
  Optimized<float> lamb(LambOptions{.eps = 1e-8, .weight_decay = 0}, std::vector<float>(kParameters));
  Optimized<float> adam(AdamOptions{}, std::vector<float>(kParameters));
  const auto gradient = normal_values<float>(kParameters, 2);
  lamb.step(gradient, {.step = 1});
  adam.step(gradient, {.step = 1});
  for (std::size_t i = 0; i < kParameters; ++i) ASSERT_NEAR(lamb.parameters[i], adam.parameters[i], 1e-9);
}

TEST(Lamb, MayBeCutWithinBlocksByThreadsThatWorkAtOnce) {
  const std::size_t count = 100'000, piece = 333;
  Optimized<float> alone(LambOptions{}, normal_values<float>(count, 1)), shared = alone;
  auto gradient = normal_values<float>(count, 2);
  alone.step(gradient, {.step = 1});
  TensorStep step(shared.options, shared.memory(std::span<float>(gradient)), {.step = 1});
  std::atomic<std::size_t> next = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (std::size_t at; (at = next.fetch_add(piece)) < count;) step.run(at, std::min(piece, count - at));
    });
  for (std::thread& thread : threads) thread.join();
  step.settle();
  step.finish(0, count);
  expect_same_optimized(shared, alone);
}

TEST(Lamb, DoesNotSettleBeforeItSawEveryValue) {
  Optimized<float> model(LambOptions{}, normal_values<float>(kParameters, 1));
  auto gradient = normal_values<float>(kParameters, 2);
  TensorStep step(model.options, model.memory(std::span<float>(gradient)), {.step = 1});
  step.run(0, kParameters - 1);
  EXPECT_THROW(step.settle(), std::logic_error);
  step.run(kParameters - 1, 1);
  step.settle();
}

TEST(Step, RefusesWhatDoesNotFitTogether) {
  Optimized<float> model(AdamOptions{}, normal_values<float>(kParameters, 1));
  std::vector<float> gradient(kParameters), few(kParameters - 1);
  std::vector<double> doubles(kParameters);
  const TensorMemory good = model.memory(std::span<float>(gradient));
  const auto expect_refused = [&](auto change) {
    TensorMemory memory = good;
    change(memory);
    EXPECT_THROW(TensorStep(model.options, memory, {.step = 1}), std::invalid_argument);
  };
  expect_refused([&](TensorMemory& memory) { memory.gradient = std::span<float>(few); });
  expect_refused([&](TensorMemory& memory) { memory.result = std::span<float>(few); });
  expect_refused([&](TensorMemory& memory) { memory.result = std::span<double>(doubles); });
  expect_refused([&](TensorMemory& memory) { memory.copy = std::span<float>(few); });
  expect_refused([&](TensorMemory& memory) { memory.state[1] = {}; });
  expect_refused([&](TensorMemory& memory) { memory.state[0] = std::span<double>(doubles); });
  EXPECT_THROW(TensorStep(model.options, good, {.step = 0}), std::invalid_argument);
  EXPECT_THROW(TensorStep(AdamOptions{.beta1 = 1}, good, {.step = 1}), std::invalid_argument);
  EXPECT_THROW(View(DType::int32, gradient.data(), kParameters), std::invalid_argument);
  TensorStep step(model.options, good, {.step = 1});
  EXPECT_THROW(step.run(1, kParameters), std::out_of_range);
}

TEST(Options, OutOfRangeAreNamed) {
  const auto expect_named = [](const Options& options, const std::string& name) {
    try {
      check(options);
      ADD_FAILURE() << name;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  };
  expect_named(SgdOptions{.lr = -1}, "lr");
  expect_named(SgdOptions{.lr = std::nan("")}, "lr");
  expect_named(SgdOptions{.momentum = 0.9, .dampening = 0.1, .nesterov = true}, "nesterov");
  expect_named(AdamWOptions{.beta2 = 1}, "beta2");
  expect_named(RmspropOptions{.weight_decay = -1}, "weight_decay");
  expect_named(AdagradOptions{.initial_accumulator_value = -1}, "initial_accumulator_value");
  expect_named(LambOptions{.smallest_norm = 2, .largest_norm = 1}, "smallest_norm");
  for (const Options& options : all_options()) EXPECT_NO_THROW(check(options)) << describe(options);
}

/// The code of docs/optimizer-steps.md, which tests/tools/test_code_blocks.py compares with this.
TEST(OptimizerSteps, AreMadeAsTheDocumentSays) {
  std::vector<float> parameters(kParameters, 1), gradient(kParameters, 8);
  std::vector<float> exp_avg(kParameters), exp_avg_sq(kParameters);
  constexpr double samples = 4;

  TensorMemory memory{.parameters = std::span<const float>(parameters), .result = std::span<float>(parameters),
                      .gradient = std::span<float>(gradient)};
  memory.state = {std::span<float>(exp_avg), std::span<float>(exp_avg_sq)};
  TensorStep step(AdamWOptions{.lr = 1e-3}, memory, {.step = 1, .gradient_factor = 1.0 / samples});
  step.run(0, parameters.size());  // or stretch by stretch, on several threads

  EXPECT_NEAR(parameters.front(), 1 - 1e-3 - 1e-5, 1e-6);  // the first step of Adam is its rate, and weight decay
  EXPECT_NEAR(exp_avg.back(), 0.2, 1e-6);                 // a tenth of the mean gradient
}

}  // namespace
}  // namespace cohive::optim
