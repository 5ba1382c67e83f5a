#include "cohive/optim/parallel.hpp"

#include <atomic>
#include <thread>

#include "cohive/core/combine.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "optim/optimized.hpp"
#include "optim/reference.hpp"

namespace cohive::optim {
namespace {

/// Tensors of odd sizes, one of them empty, that have several stretches together.
const std::vector<std::size_t> kSizes = {3 * kStretch + 17, 0, 5, kStretch, 1000, 2 * kStretch - 1};

struct Model {
  explicit Model(const Options& options) {
    for (std::size_t size : kSizes) {
      tensors.emplace_back(options, normal_values<float>(size, static_cast<unsigned>(size)));
      gradients.push_back(normal_values<float>(size, static_cast<unsigned>(size + 1)));
    }
  }
  std::shared_ptr<std::vector<TensorStep>> steps(std::int64_t step) {
    auto steps = std::make_shared<std::vector<TensorStep>>();
    for (std::size_t i = 0; i < tensors.size(); ++i)
      steps->emplace_back(tensors[i].options, tensors[i].memory(std::span<float>(gradients[i])),
                          StepSettings{.step = step});
    return steps;
  }
  std::vector<Optimized<float>> tensors;
  std::vector<std::vector<float>> gradients;
};

void expect_same_models(const Model& a, const Model& b) {
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    expect_same_bits(a.tensors[i].parameters, b.tensors[i].parameters);
    for (std::size_t k = 0; k < a.tensors[i].state.size(); ++k)
      expect_same_bits(a.tensors[i].state[k], b.tensors[i].state[k]);
  }
}

TEST(Parallel, StepsAreTheSameOnAnyNumberOfThreads) {
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 4});
  for (const Options& options : {Options(AdamWOptions{}), Options(LambOptions{})}) {
    Model alone(options);
    for (std::int64_t step = 1; step <= 2; ++step) {
      const auto steps = alone.steps(step);
      for (TensorStep& tensor : *steps) Optimized<float>::make(std::move(tensor));
    }
    for (std::size_t threads : {0, 1, 4}) {
      const auto model = std::make_shared<Model>(options);
      for (std::int64_t step = 1; step <= 2; ++step)
        runtime->run(run_steps(*runtime, model->steps(step), model, threads));
      expect_same_models(alone, *model);
    }
  }
}

TEST(Parallel, StepsAreTheSameUnderSimulation) {
  SimRuntime simulated(7);
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 2});
  const auto a = std::make_shared<Model>(LambOptions{}), b = std::make_shared<Model>(LambOptions{});
  simulated.run(run_steps(simulated, a->steps(1), a));
  runtime->run(run_steps(*runtime, b->steps(1), b));
  expect_same_models(*a, *b);
}

TEST(Parallel, PassesAreTheSameAsOnOneThread) {
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 4});
  const auto model = std::make_shared<Model>(SgdOptions{});
  std::vector<std::vector<float>> sums, expected;
  std::vector<Addition> additions;
  std::vector<View> views;
  std::vector<ConstView> read;
  double squares = 0;
  for (std::size_t size : kSizes) sums.push_back(normal_values<float>(size, 3));
  expected = sums;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    accumulate(std::span<float>(model->gradients[i]), expected[i], {.factor = 0.3});
    squares += square_sum(std::span<const float>(expected[i]));
    scale(std::span<float>(expected[i]), 0.7);
    additions.push_back({std::span<float>(model->gradients[i]), sums[i]});
    views.push_back(std::span<float>(sums[i]));
    read.push_back(views.back());
  }
  EXPECT_TRUE(runtime->run(accumulate(*runtime, additions, {.factor = 0.3}, model)));
  EXPECT_EQ(runtime->run(square_sum(*runtime, read, model)), squares);
  EXPECT_TRUE(runtime->run(scale(*runtime, views, 0.7, model)));
  for (std::size_t i = 0; i < sums.size(); ++i) expect_same_bits(sums[i], expected[i]);
  EXPECT_TRUE(runtime->run(all_finite(*runtime, read, model)));
  sums.back().back() = NAN;
  EXPECT_FALSE(runtime->run(all_finite(*runtime, read, model)));
  EXPECT_FALSE(runtime->run(scale(*runtime, views, 1, model)));
  std::vector<std::vector<double>> doubles;
  std::vector<Copying> copies;
  for (const auto& sum : sums) doubles.emplace_back(sum.size());
  for (std::size_t i = 0; i < sums.size(); ++i) copies.push_back({read[i], std::span<double>(doubles[i])});
  runtime->run(copy(*runtime, copies, model));
  for (std::size_t i = 0; i < sums.size(); ++i)
    expect_same_bits(doubles[i], std::vector<double>(sums[i].begin(), sums[i].end()));
}

TEST(Parallel, LargeTensorsLeaveTheLoopSmallOnesNeedNotAndEveryValueIsHadOnce) {
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 2});
  const auto loop = std::this_thread::get_id();
  for (bool large : {false, true}) {
    const auto sizes = large ? kSizes : std::vector<std::size_t>{10, 0, 1000};
    std::vector<std::atomic<std::size_t>> had(sizes.size());
    std::atomic<bool> on_loop = false;
    runtime->run(for_stretches(*runtime, sizes, [&](const Stretch& at) {
      had[at.tensor] += at.count;
      EXPECT_EQ(at.offset % kStretch, 0u);
      if (std::this_thread::get_id() == loop) on_loop = true;
    }));
    for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(had[i], sizes[i]);
    EXPECT_EQ(on_loop, !large);
  }
}

TEST(Parallel, OtherWorkIsServedBetweenStretches) {
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  std::atomic<std::size_t> done = 0, seen = 0;
  const std::size_t all = 200;
  const auto look = [](Runtime& where, std::atomic<std::size_t>& count, std::atomic<std::size_t>& out) -> Task<void> {
    const auto work = [&count, &out] { out = count.load(); };
    co_await where.offload(work);
  };
  std::vector<Task<void>> both;
  both.push_back(for_stretches(*runtime, {all * kStretch}, [&](const Stretch&) { ++done; }));
  both.push_back(look(*runtime, done, seen));
  runtime->run(when_all(*runtime, std::move(both)));
  EXPECT_EQ(done, all);
  EXPECT_LT(seen, all);
}

TEST(Parallel, AbandonedWorkEndsSoonAndGivesUpItsOwner) {
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 2});
  std::atomic<std::size_t> done = 0;
  std::promise<void> begun, dropped;
  auto owner = std::make_shared<std::shared_future<void>>(dropped.get_future().share());
  std::weak_ptr<const void> alive = owner;
  TaskGroup group(*runtime);
  group.spawn(for_stretches(
      *runtime, {100 * kStretch},
      [&begun, &done, owner](const Stretch&) {
        if (done++ == 0) begun.set_value();
        owner->wait();
      },
      1));
  owner.reset();
  const auto wait = [](Runtime& where, std::future<void> until) -> Task<void> {
    while (until.wait_for(std::chrono::seconds(0)) != std::future_status::ready) co_await where.yield();
  };
  runtime->run(wait(*runtime, begun.get_future()));
  group.cancel();
  dropped.set_value();
  const auto released = [](Runtime& where, std::weak_ptr<const void> what) -> Task<void> {
    while (!what.expired()) co_await where.yield();
  };
  runtime->run(released(*runtime, alive));
  EXPECT_EQ(done, 1u);
}

}  // namespace
}  // namespace cohive::optim
