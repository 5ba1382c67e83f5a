// What a GPU makes of gradients and parameters has the bits of what the host makes of them.
#include "cohive/cuda/backend.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cohive/optim/passes.hpp"
#include "cohive/train/gradient_sums.hpp"
#include "gpu.hpp"
#ifdef COHIVE_CUDA_EMULATED
#include "cuda/emulator/driver.hpp"
#endif

namespace cohive::cuda {
namespace {

using train::Backend;
using train::Buffer;

constexpr std::size_t kTensors[] = {5000, 1, 1024, 0, 3333};

/// Values of both signs and many magnitudes.
std::vector<float> some_values(std::size_t size, std::uint32_t seed, bool positive = false) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    seed = seed * 1664525 + 1013904223;
    const float value = static_cast<float>(seed >> 8) / 16777216.0f - (positive ? 0 : 0.5f);
    values[i] = std::ldexp(value, static_cast<int>(seed % 13) - 9);
  }
  return values;
}

class OnBackends : public Gpu {
 protected:
  void SetUp() override {
    Gpu::SetUp();
    if (IsSkipped()) return;
    host = train::host_backend(*runtime);
    device = make_backend(*runtime).value();
  }

  Buffer put(Backend& backend, const std::vector<float>& values) {
    Buffer buffer = backend.allocate(values.size());
    if (&backend == host.get()) {
      std::ranges::copy(values, buffer.values.begin());
    } else {
      const std::span bytes(reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(float));
      stream().upload_async(bytes, buffer.values.data()).value();
      stream().synchronize().value();
    }
    return buffer;
  }
  std::vector<float> get(Backend& backend, const Buffer& buffer) {
    std::vector<float> values(buffer.values.size());
    if (&backend == host.get()) {
      std::ranges::copy(buffer.values, values.begin());
    } else {
      const std::span bytes(reinterpret_cast<std::uint8_t*>(values.data()), values.size() * sizeof(float));
      stream().download_async(buffer.values.data(), bytes).value();
      stream().synchronize().value();
    }
    return values;
  }

  /// Parameters and statistics of several tensors.
  struct Model {
    std::vector<Buffer> live, next;
    std::vector<std::vector<Buffer>> statistics;
  };
  Model model_on(Backend& backend, const optim::Options& options) {
    Model model;
    std::uint32_t seed = 1;
    for (const std::size_t size : kTensors) {
      model.live.push_back(put(backend, some_values(size, seed++)));
      model.next.push_back(put(backend, std::vector<float>(size, 7)));
      model.statistics.emplace_back();
      for (const auto& field : optim::state_fields(options))
        model.statistics.back().push_back(put(backend, std::vector<float>(size, static_cast<float>(field.initial))));
    }
    return model;
  }
  /// Steps with gradients whose round was this peer's alone. \param place  live or next
  /// \param absent  this peer has no gradients: those of others are all that steps go by
  std::vector<bool> step(Backend& backend, Model& model, const optim::Options& options, std::int64_t number,
                         bool to_next, std::optional<double> max_norm, bool absent = false) {
    train::GradientWork work;
    for (std::size_t i = 0; i < std::size(kTensors); ++i) {
      work.infos.push_back({.shape = {static_cast<std::uint32_t>(kTensors[i])}});
      auto gradient = some_values(kTensors[i], 100 * static_cast<std::uint32_t>(number + 1));
      if (absent) std::ranges::fill(gradient, 0.0f);
      work.sums.push_back(put(backend, gradient));
      optim::TensorMemory memory{std::span<const float>(model.live[i].values),
                                 to_next ? model.next[i].values : model.live[i].values,
                                 {},
                                 work.sums[i].values,
                                 {}};
      for (std::size_t k = 0; k < model.statistics[i].size(); ++k) memory.state[k] = model.statistics[i][k].values;
      work.steps.push_back({options, memory, {number}, !absent});
    }
    work.factor = 0.3;
    work.max_norm = max_norm;
    const auto round = backend.gradient_round(std::move(work));
    // Some have an average, and are stepped as it comes; they begin and end anywhere.
    for (const averaging::Stretch& stretch : {averaging::Stretch{0, 3, 2001}, averaging::Stretch{2, 1000, 24}}) {
      auto part = std::make_shared<averaging::EncodedPart>();
      part->record = codec::encode(codec::Codec::none, some_values(stretch.length, 77));
      part->buffer = part->record.view();
      const averaging::Answer answer{averaging::Answer::Form::average, std::move(part), std::nullopt};
      EXPECT_TRUE(runtime->run(round->parts()->apply(stretch, answer, {})));
    }
    runtime->run(round->parts()->finish());
    return runtime->run(round->finish_step());
  }
  void expect_same_bits(const Model& ours, const Model& theirs, const char* what) {
    const auto same = [&](const Buffer& one, const Buffer& other) {
      return std::ranges::equal(get(*host, one), get(*device, other), [](float a, float b) {
        return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
      });
    };
    for (std::size_t i = 0; i < std::size(kTensors); ++i) {
      EXPECT_TRUE(same(ours.live[i], theirs.live[i])) << what << ", parameter " << i;
      EXPECT_TRUE(same(ours.next[i], theirs.next[i])) << what << ", next parameter " << i;
      for (std::size_t k = 0; k < ours.statistics[i].size(); ++k)
        EXPECT_TRUE(same(ours.statistics[i][k], theirs.statistics[i][k])) << what << ", statistic " << k << " of " << i;
    }
  }

  std::unique_ptr<Runtime> runtime = make_runtime({.seed = 1, .pool_threads = 2});
  std::shared_ptr<Backend> host, device;
};

TEST_F(OnBackends, EveryOptimizerStepsAsOnTheHost) {
  const std::pair<const char*, optim::Options> all[] = {
      {"sgd", optim::SgdOptions{.lr = 0.1}},
      {"sgd with momentum", optim::SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01}},
      {"nesterov", optim::SgdOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true}},
      {"adam", optim::AdamOptions{.lr = 0.01, .weight_decay = 0.1}},
      {"amsgrad", optim::AdamOptions{.lr = 0.01, .amsgrad = true}},
      {"adamw", optim::AdamWOptions{.lr = 0.01}},
      {"rmsprop", optim::RmspropOptions{.lr = 0.01}},
      {"rmsprop centered", optim::RmspropOptions{.lr = 0.01, .momentum = 0.9, .centered = true}},
      {"adagrad", optim::AdagradOptions{.lr = 0.01, .initial_accumulator_value = 0.1}},
      {"lamb", optim::LambOptions{.lr = 0.01}},
      {"lamb without decay", optim::LambOptions{.lr = 0.01, .weight_decay = 0, .bias_correction = false}},
  };
  for (const auto& [name, options] : all) {
    Model here = model_on(*host, options), there = model_on(*device, options);
    for (std::int64_t number = 1; number <= 4; ++number) {
      const bool to_next = number == 2, absent = number == 4;
      const auto max_norm = number == 3 ? std::optional(0.5) : std::nullopt;
      step(*host, here, options, number, to_next, max_norm, absent);
      step(*device, there, options, number, to_next, max_norm, absent);
      expect_same_bits(here, there, name);
    }
  }
}

/// As LibTorch has it: no decay of weights, no momentum, nothing. The parameters of which averages come are stepped.
TEST_F(OnBackends, AParameterOfWhichNobodyHasAGradientIsLeftAlone) {
  constexpr std::size_t kAveraged[] = {0, 2};  // see step()
  for (auto* backend : {host.get(), device.get()})
    for (const bool to_next : {false, true})
      for (const auto max_norm : {std::optional<double>(), std::optional(1e3)}) {
        Model model = model_on(*backend, optim::LambOptions{});
        for (auto& of_parameter : model.statistics)
          for (auto& statistic : of_parameter)
            statistic = put(*backend, std::vector<float>(statistic.values.size(), 0.5f));
        const auto stepped = step(*backend, model, optim::LambOptions{}, 1, to_next, max_norm, true);
        for (std::size_t i = 0; i < std::size(kTensors); ++i) {
          const bool averaged = std::ranges::find(kAveraged, i) != std::end(kAveraged);
          EXPECT_EQ(stepped[i], averaged);
          const auto before = some_values(kTensors[i], static_cast<std::uint32_t>(i) + 1);
          const auto& result = to_next ? model.next[i] : model.live[i];
          EXPECT_EQ(get(*backend, result) == before, !averaged) << "parameter " << i;
          for (const auto& statistic : model.statistics[i])
            EXPECT_EQ(get(*backend, statistic) == std::vector<float>(kTensors[i], 0.5f), !averaged);
        }
      }
}

/// Batches of one, seven, three and five samples weigh 1/16, 7/16, 3/16 and 5/16.
TEST_F(OnBackends, BatchesWeighByTheirSamples) {
  for (const auto& backend : {host, device}) {
    train::GradientSums sums(*runtime, backend, {100, 3});
    for (const auto& [samples, gradient] : {std::pair(1, 1.0f), {7, 2.0f}, {3, 4.0f}, {5, 8.0f}}) {
      const auto memory = put(*backend, std::vector<float>(100, gradient));
      const auto add = [&, of = samples] { sums.add({{memory.values, memory.owner, true}, {}}, of); };
      runtime->run([](Runtime& loop, auto work) -> Task<void> { co_await loop.offload(work); }(*runtime, add));
    }
    sums.cut();
    const auto taken = runtime->run(sums.take());
    for (const float value : get(*backend, taken.sums[0]))
      EXPECT_NEAR(double{value} * taken.factor, (1 + 14 + 12 + 40) / 16.0, 1e-6);
    EXPECT_EQ(taken.present, (std::vector<bool>{true, false}));
  }
}

/// A LibTorch model's gradients, of any type that it computes with.
TEST_F(OnBackends, GradientsOf16BitsAddUpAsOnTheHost) {
  for (const optim::DType dtype : {optim::DType::float16, optim::DType::bfloat16})
    for (const std::size_t skipped : {0, 1}) {  // not aligned for four at a time
      const std::size_t count = 3333 - skipped;
      std::vector<std::vector<float>> sums;
      for (auto* backend : {host.get(), device.get()}) {
        const auto sum = put(*backend, std::vector<float>(count, 1));
        for (const bool first : {true, false}) {
          std::vector<float> packed(3334 / 2);
          const auto values = some_values(3333, first ? 1 : 2);
          optim::copy(std::span<const float>(values), optim::View(dtype, packed.data(), values.size()));
          const auto memory = put(*backend, packed);
          const optim::View gradient(dtype, reinterpret_cast<std::uint16_t*>(memory.values.data()) + skipped, count);
          EXPECT_TRUE(runtime->run(backend->all_finite({gradient}, nullptr)));
          EXPECT_TRUE(
              runtime->run(backend->accumulate({{gradient, sum.values}}, {.factor = 0.7, .first = first}, nullptr)));
        }
        sums.push_back(get(*backend, sum));
      }
      EXPECT_EQ(sums[0], sums[1]) << codec::name_of(dtype);
    }
}

TEST_F(OnBackends, AValueOf16BitsThatIsNotFiniteIsTold) {
  for (const auto& [dtype, infinity] : {std::pair(optim::DType::float16, 0x7c00), {optim::DType::bfloat16, 0xff80}})
    for (auto* backend : {host.get(), device.get()}) {
      std::vector<std::uint16_t> bits(1000, 0x3c00);
      bits[700] = static_cast<std::uint16_t>(infinity);
      std::vector<float> packed(500);
      std::memcpy(packed.data(), bits.data(), 2000);
      const auto memory = put(*backend, packed), sum = put(*backend, std::vector<float>(1000, 1));
      const optim::View gradient(dtype, memory.values.data(), 1000);
      EXPECT_FALSE(runtime->run(backend->all_finite({gradient}, nullptr)));
      EXPECT_FALSE(runtime->run(backend->accumulate({{gradient, sum.values}}, {}, nullptr)));
      EXPECT_EQ(get(*backend, sum)[700], 1);
    }
}

TEST_F(OnBackends, GradientsAddUpAsOnTheHost) {
  for (auto* backend : {host.get(), device.get()}) {
    const auto first = put(*backend, some_values(3333, 1)), second = put(*backend, some_values(3333, 2));
    const auto sum = backend->allocate(3333);
    EXPECT_TRUE(
        runtime->run(backend->accumulate({{first.values, sum.values}}, {.factor = 0.7, .first = true}, nullptr)));
    EXPECT_TRUE(runtime->run(backend->accumulate({{second.values, sum.values}}, {.factor = 1.3}, nullptr)));
    std::vector<float> expected(3333);
    const auto a = some_values(3333, 1), b = some_values(3333, 2);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = a[i] * 0.7f + b[i] * 1.3f;
    EXPECT_EQ(get(*backend, sum), expected);
  }
}

TEST_F(OnBackends, AGradientThatIsNotFiniteIsToldAndLeftOut) {
  for (auto* backend : {host.get(), device.get()}) {
    auto values = some_values(3333, 1);
    values[17] = std::numeric_limits<float>::infinity();
    const auto gradient = put(*backend, values), sum = put(*backend, std::vector<float>(3333, 1));
    EXPECT_FALSE(runtime->run(backend->all_finite({std::span<const float>(gradient.values)}, nullptr)));
    EXPECT_FALSE(runtime->run(backend->accumulate({{gradient.values, sum.values}}, {}, nullptr)));
    EXPECT_EQ(get(*backend, sum)[17], 1);
    runtime->run(backend->clear({sum}));
    EXPECT_TRUE(runtime->run(backend->all_finite({std::span<const float>(sum.values)}, nullptr)));
    EXPECT_EQ(get(*backend, sum), std::vector<float>(3333, 0));
  }
}

TEST_F(OnBackends, ARoundWithoutAveragesLeavesParametersOrNoDifferences) {
  for (auto* backend : {host.get(), device.get()}) {
    const auto live = put(*backend, some_values(3333, 1)), next = put(*backend, std::vector<float>(3333, 5));
    runtime->run(backend->state_parts({{.shape = {3333}}}, {{live.values, next.values}}, false)->finish());
    EXPECT_EQ(get(*backend, next), some_values(3333, 1));
    runtime->run(backend->state_parts({{.shape = {3333}}}, {next.values}, true)->finish());
    EXPECT_EQ(get(*backend, next), std::vector<float>(3333, 0));
    const auto change = put(*backend, std::vector<float>(3333, 2));
    backend->add_to_live(change.values, next.values);
    backend->follow_caller();
    runtime->run(backend->copy({{next.values, live.values}}, nullptr));
    EXPECT_EQ(get(*backend, live), std::vector<float>(3333, 2));
  }
}

#ifdef COHIVE_CUDA_EMULATED
/// Work of the trainer that is queued, and not done yet, comes before what is asked for after it.
TEST_F(OnBackends, WorkWaitsForWhatTheTrainerHasQueued) {
  auto trainer = Stream::create().value();
  const auto behind = make_backend(*runtime, {.trainer_stream = [&] { return trainer.native(); }}).value();
  auto values = HostBuffer::create(3333 * sizeof(float)).value();
  std::ranges::fill(values.floats(), 3.0f);
  const auto gradient = put(*behind, std::vector<float>(3333, 1)), sum = behind->allocate(3333);
  emulated::set_delay(std::chrono::milliseconds(5));
  for (int i = 0; i < 20; ++i) {
    std::ranges::fill(values.floats(), static_cast<float>(i));
    trainer.upload_async(values.bytes(), gradient.values.data()).value();
    behind->follow_caller();
    runtime->run(behind->copy({{gradient.values, sum.values}}, nullptr));
    EXPECT_EQ(get(*behind, sum), std::vector<float>(3333, static_cast<float>(i)));
  }
  emulated::set_delay({});
}

TEST_F(OnBackends, AnErrorOfTheDeviceIsThrown) {
  const auto sum = device->allocate(100);
  emulated::fail_after(0, 700);
  EXPECT_THROW(runtime->run(device->clear({sum})), ErrorException);
  emulated::fail_after(0, 0);
}

/// Instead of a wait that never ends.
TEST_F(OnBackends, AnErrorWhileGradientsAreAddedReachesTheTrainer) {
  train::GradientSums sums(*runtime, device, {100});
  const auto gradient = put(*device, std::vector<float>(100, 1));
  emulated::fail_after(0, 700);
  sums.add({{gradient.values, gradient.owner, true}}, 1);
  sums.cut();
  EXPECT_THROW(runtime->run(sums.take()), ErrorException);
  EXPECT_THROW(sums.add({{gradient.values, gradient.owner, true}}, 1), ErrorException);
  emulated::fail_after(0, 0);
}
#endif

}  // namespace
}  // namespace cohive::cuda
