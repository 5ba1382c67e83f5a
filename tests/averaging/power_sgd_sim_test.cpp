// Rounds of PowerSGD on a simulated network, beside what its formulas say, worked out in double precision.
#include "cohive/averaging/power_sgd.hpp"

#include <gmock/gmock.h>

#include <random>

#include "averaging/averaging_fixture.hpp"
#include "averaging/schemes/low_rank.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::averaging {
namespace {

using Values = std::vector<float>;
using Doubles = std::vector<double>;

Doubles product(const Doubles& a, const Doubles& b, std::size_t rows, std::size_t inner, std::size_t columns) {
  Doubles out(rows * columns);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t k = 0; k < inner; ++k)
      for (std::size_t j = 0; j < columns; ++j) out[i * columns + j] += a[i * inner + k] * b[k * columns + j];
  return out;
}
Doubles transposed(const Doubles& a, std::size_t rows, std::size_t columns) {
  Doubles out(a.size());
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) out[j * rows + i] = a[i * columns + j];
  return out;
}
void orthogonalise_columns(Doubles& a, std::size_t rows, std::size_t columns) {
  for (std::size_t c = 0; c < columns; ++c) {
    double squares = 0;
    for (std::size_t i = 0; i < rows; ++i) squares += a[i * columns + c] * a[i * columns + c];
    for (std::size_t i = 0; i < rows; ++i) a[i * columns + c] /= std::max(std::sqrt(squares), 1e-8);
    for (std::size_t d = c + 1; d < columns; ++d) {
      double dot = 0;
      for (std::size_t i = 0; i < rows; ++i) dot += a[i * columns + c] * a[i * columns + d];
      for (std::size_t i = 0; i < rows; ++i) a[i * columns + d] -= dot * a[i * columns + c];
    }
  }
}

/// The round of one compressed tensor, as the specification has it.
struct Expected {
  MatrixShape shape;
  std::size_t rank;
  Doubles q;                       ///< columns x rank, of the group
  std::vector<Doubles> residuals;  ///< of each member

  /// The average; residuals of members with a weight change.
  Doubles round(const std::vector<Values>& gradients, const Doubles& weights) {
    const auto [m, n] = shape;
    double total = 0;
    for (double weight : weights) total += weight;
    std::vector<Doubles> sums;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      sums.push_back(residuals[i]);
      for (std::size_t k = 0; k < m * n; ++k) sums[i][k] += static_cast<double>(gradients[i][k]);
    }
    Doubles p(m * rank), next(n * rank);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto own = product(sums[i], q, m, n, rank);
      for (std::size_t k = 0; k < p.size(); ++k) p[k] += own[k] * weights[i] / total;
    }
    orthogonalise_columns(p, m, rank);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto own = product(transposed(sums[i], m, n), p, n, m, rank);
      for (std::size_t k = 0; k < next.size(); ++k) next[k] += own[k] * weights[i] / total;
    }
    q = next;
    const auto average = product(p, transposed(q, n, rank), m, rank, n);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (weights[i] == 0) continue;
      for (std::size_t k = 0; k < m * n; ++k) residuals[i][k] = sums[i][k] - average[k];
    }
    return average;
  }
};

class PowerSgdRounds : public Averaging {
 protected:
  struct Trainer {
    std::vector<Values> gradients;
    std::unique_ptr<PowerSgd> sgd;
    std::unique_ptr<Averager> averager;
  };

  Trainer& add(std::vector<codec::Shape> of, PowerSgdOptions sgd = {2, 0.2}) { return add(of, sgd, quick()); }
  Trainer& add(std::vector<codec::Shape> of, PowerSgdOptions sgd, AveragerOptions options) {
    Peer& peer = join(options.mode == PeerMode::client);
    auto trainer = std::make_unique<Trainer>();
    std::vector<TensorInfo> schema;
    for (auto& shape : of) {
      schema.push_back({shape});
      trainer->gradients.emplace_back(schema.back().elements());
    }
    trainer->sgd = std::make_unique<PowerSgd>(schema, sgd);
    options.prefix = "test_grad_averager";
    options.class_name = "PowerSGDGradientAverager";
    options.scheme = trainer->sgd->scheme();
    trainer->averager = std::make_unique<Averager>(*peer.dht, schema, options);
    trainer->averager->start();
    shapes = of;
    trainers.push_back(std::move(trainer));
    return *trainers.back();
  }
  /// Gradients that have something in common, as those of trainers do.
  void draw_gradients() {
    std::normal_distribution<float> normal;
    for (std::size_t t = 0; t < shapes.size(); ++t) {
      Values common(trainers[0]->gradients[t].size());
      for (float& value : common) value = normal(random);
      for (auto& trainer : trainers)
        for (std::size_t i = 0; i < common.size(); ++i) trainer->gradients[t][i] = common[i] + normal(random) / 2;
    }
  }
  std::shared_ptr<HostParts> parts_of(Trainer& trainer) {
    std::vector<TensorInfo> infos;
    std::vector<TensorSpan> memory;
    for (std::size_t t = 0; t < shapes.size(); ++t) {
      infos.push_back({shapes[t]});
      memory.emplace_back(trainer.gradients[t]);
    }
    return std::make_shared<HostParts>(swarm.runtime(), std::move(infos), std::move(memory));
  }
  static Task<Result<RoundReport>> average(Averager& averager, double weight, std::shared_ptr<TensorParts> parts) {
    RoundOptions once;
    once.allow_retries = false;
    Round round = averager.begin(once);
    round.trigger(weight, std::move(parts));
    co_return co_await round.result();
  }
  std::vector<Result<RoundReport>> average_all(Doubles weights = {}) {
    weights.resize(trainers.size(), 1);
    std::vector<Task<Result<RoundReport>>> tasks;
    for (std::size_t i = 0; i < trainers.size(); ++i)
      tasks.push_back(average(*trainers[i]->averager, weights[i], parts_of(*trainers[i])));
    return swarm.run(when_all(swarm.runtime(), std::move(tasks)));
  }
  void expect_success(const std::vector<Result<RoundReport>>& results) {
    for (const auto& result : results) {
      ASSERT_TRUE(result) << result.error();
      EXPECT_EQ(result->group.size(), trainers.size());
      EXPECT_EQ(result->parts_failed, 0u);
      EXPECT_TRUE(result->lost_senders.empty());
    }
  }

  Doubles factor_of(const Trainer& trainer, std::size_t number) const {
    const auto shared = trainer.sgd->provider("")();
    const auto& data = shared->tensors.at(number).data;
    Values values(data.size() / 4);
    std::memcpy(values.data(), data.data(), data.size());
    return {values.begin(), values.end()};
  }
  Expected expected_of(std::size_t number, std::size_t rank) const {
    const std::size_t tensor = trainers[0]->sgd->compressed().at(number);
    const MatrixShape shape = matrix_of(shapes[tensor]);
    return {shape, rank, factor_of(*trainers[0], number),
            std::vector<Doubles>(trainers.size(), Doubles(shape.rows * shape.columns))};
  }
  std::vector<Values> gradients_of(std::size_t tensor) const {
    std::vector<Values> all;
    for (const auto& trainer : trainers) all.push_back(trainer->gradients[tensor]);
    return all;
  }
  static Doubles mean_of(const std::vector<Values>& values, const Doubles& weights) {
    Doubles mean(values[0].size());
    double total = 0;
    for (std::size_t i = 0; i < values.size(); ++i) total += weights[i];
    for (std::size_t i = 0; i < values.size(); ++i)
      for (std::size_t k = 0; k < mean.size(); ++k) mean[k] += static_cast<double>(values[i][k]) * weights[i] / total;
    return mean;
  }
  /// What a member has to give: gradient and residual.
  Values sum_of(const Trainer& trainer, std::size_t tensor) const {
    Values sum = trainer.gradients[tensor];
    const auto owed = trainer.sgd->residual(tensor);
    for (std::size_t i = 0; i < owed.size(); ++i) sum[i] += owed[i];
    return sum;
  }
  static void expect_near(std::span<const float> found, const Doubles& expected, double tolerance, const char* what) {
    ASSERT_EQ(found.size(), expected.size()) << what;
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], tolerance) << what << " " << i;
  }

  std::vector<codec::Shape> shapes;
  std::vector<std::unique_ptr<Trainer>> trainers;
  std::mt19937 random{11};
};

// ---- What comes of a round

struct Members : PowerSgdRounds, ::testing::WithParamInterface<std::tuple<std::size_t, std::size_t>> {};

TEST_P(Members, GetTheAverageOfTheFormulasRoundAfterRound) {
  const auto [members, rank] = GetParam();
  for (std::size_t i = 0; i < members; ++i) add({{11}, {80, 96}, {2, 2}, {90, 10, 3, 3}, {1}}, {rank, 0.1});
  ASSERT_THAT(trainers[0]->sgd->compressed(), ::testing::ElementsAre(1, 3));
  Expected first = expected_of(0, rank), second = expected_of(1, rank);
  const Doubles weights{1, 2.5, 0.5, 3, 1};
  for (int round = 0; round < 3; ++round) {
    draw_gradients();
    const Doubles plain = mean_of(gradients_of(2), weights);
    const auto one = first.round(gradients_of(1), {weights.begin(), weights.begin() + static_cast<long>(members)});
    const auto two = second.round(gradients_of(3), {weights.begin(), weights.begin() + static_cast<long>(members)});
    expect_success(average_all(weights));
    for (std::size_t i = 0; i < members; ++i) {
      expect_near(trainers[i]->gradients[1], one, 1e-4, "a matrix");
      expect_near(trainers[i]->gradients[3], two, 1e-4, "a filter");
      expect_near(trainers[i]->sgd->residual(1), first.residuals[i], 2e-4, "residual");
      expect_near(trainers[i]->sgd->residual(3), second.residuals[i], 2e-4, "residual");
      expect_near(trainers[i]->gradients[2], plain, 1e-5, "not compressed");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PowerSgd, Members,
                         ::testing::Combine(::testing::Values(2, 3, 5), ::testing::Values(1, 4, 32)));
INSTANTIATE_TEST_SUITE_P(Four, Members, ::testing::Values(std::tuple(4, 7)));

TEST_F(PowerSgdRounds, WhatIsAppliedAndWhatIsOwedAreTogetherWhatThereWas) {
  for (int i = 0; i < 3; ++i) add({{300, 200}, {9}}, {4, 0.5});
  for (int round = 0; round < 4; ++round) {
    draw_gradients();
    std::vector<Values> before;
    for (const auto& trainer : trainers) before.push_back(sum_of(*trainer, 0));
    expect_success(average_all());
    for (std::size_t i = 0; i < trainers.size(); ++i)
      expect_near(sum_of(*trainers[i], 0), Doubles(before[i].begin(), before[i].end()), 1e-5, "nothing is lost");
  }
}

TEST_F(PowerSgdRounds, AMatrixOfThatRankIsAveragedAsItIsWithFewBytes) {
  for (int i = 0; i < 3; ++i) add({{200, 300}}, {2, 0.5});
  std::normal_distribution<float> normal;
  Values left(200 * 2), right(2 * 300);
  for (int round = 0; round < 2; ++round) {
    for (float& value : left) value = normal(random);
    for (float& value : right) value = normal(random);
    Doubles mean(200 * 300);
    for (std::size_t t = 0; t < trainers.size(); ++t) {
      for (std::size_t i = 0; i < 200; ++i) {
        for (std::size_t j = 0; j < 300; ++j) {
          const float value = static_cast<float>(t) * (left[i * 2] * right[j] + left[i * 2 + 1] * right[300 + j]);
          trainers[t]->gradients[0][i * 300 + j] = value;
          mean[i * 300 + j] += static_cast<double>(value) / 3;
        }
      }
    }
    const auto results = average_all();
    expect_success(results);
    for (const auto& result : results) EXPECT_LT(result->bytes_sent + result->bytes_received, 4 * 500 * 2 * 4u);
    for (const auto& trainer : trainers) expect_near(trainer->gradients[0], mean, 1e-3, "the mean");
  }
}

TEST_F(PowerSgdRounds, TensorsThatAreNotCompressedAreAveragedPlainly) {
  for (int i = 0; i < 3; ++i) add({{11}, {4, 4}, {}});
  draw_gradients();
  const std::vector means{mean_of(gradients_of(0), {1, 2, 1}), mean_of(gradients_of(1), {1, 2, 1})};
  expect_success(average_all({1, 2, 1}));
  for (const auto& trainer : trainers)
    for (std::size_t t = 0; t < 2; ++t) expect_near(trainer->gradients[t], means[t], 1e-5, "mean");
}

TEST_F(PowerSgdRounds, AClientModeMemberTakesPart) {
  auto options = quick();
  for (int i = 0; i < 2; ++i) add({{60, 50}, {3}});
  options.mode = PeerMode::client;
  add({{60, 50}, {3}}, {2, 0.2}, options);
  Expected expected = expected_of(0, 2);
  draw_gradients();
  const auto average = expected.round(gradients_of(0), {1, 1, 1});
  expect_success(average_all());
  for (const auto& trainer : trainers) expect_near(trainer->gradients[0], average, 1e-4, "average");
}

TEST_F(PowerSgdRounds, AMemberWithoutWeightGetsTheAverageAndKeepsItsResidual) {
  for (int i = 0; i < 3; ++i) add({{60, 50}});
  Expected expected = expected_of(0, 2);
  draw_gradients();
  expected.round(gradients_of(0), {1, 1, 1});
  expect_success(average_all());
  const auto owed = trainers[1]->sgd->residual(0);
  ASSERT_FALSE(owed.empty());
  draw_gradients();
  const auto average = expected.round(gradients_of(0), {1, 0, 1});
  expect_success(average_all({1, 0, 1}));
  for (const auto& trainer : trainers) expect_near(trainer->gradients[0], average, 1e-4, "average");
  EXPECT_EQ(trainers[1]->sgd->residual(0), owed);
}

TEST_F(PowerSgdRounds, GradientsOfZerosDoNotEndTheLearning) {
  for (int i = 0; i < 2; ++i) add({{60, 50}});
  const auto factors = factor_of(*trainers[0], 0);
  expect_success(average_all());
  EXPECT_THAT(trainers[0]->gradients[0], ::testing::Each(0));
  EXPECT_EQ(factor_of(*trainers[0], 0), factors);
  Expected expected = expected_of(0, 2);
  draw_gradients();
  const auto average = expected.round(gradients_of(0), {1, 1});
  expect_success(average_all());
  for (const auto& trainer : trainers) expect_near(trainer->gradients[0], average, 1e-4, "average");
}

TEST_F(PowerSgdRounds, ResidualsThatAreForgottenAreZero) {
  for (int i = 0; i < 2; ++i) add({{60, 50}});
  draw_gradients();
  expect_success(average_all());
  for (auto& trainer : trainers) trainer->sgd->reset_residuals();
  EXPECT_TRUE(trainers[0]->sgd->residual(0).empty());
  Expected expected = expected_of(0, 2);
  draw_gradients();
  const auto average = expected.round(gradients_of(0), {1, 1});
  expect_success(average_all());
  for (const auto& trainer : trainers) expect_near(trainer->gradients[0], average, 1e-4, "average");
}

TEST_F(PowerSgdRounds, GoOnWithWhatWasSavedWhateverCameAfterIt) {
  for (int i = 0; i < 2; ++i) add({{11}, {60, 50}});
  draw_gradients();
  expect_success(average_all());
  Expected expected = expected_of(0, 2);
  std::vector<PowerSgd::Saved> saved;
  for (std::size_t i = 0; i < trainers.size(); ++i) {
    const auto owed = trainers[i]->sgd->residual(1);
    expected.residuals[i].assign(owed.begin(), owed.end());
    saved.push_back(swarm.run(trainers[i]->sgd->save(swarm.runtime())));
  }
  draw_gradients();
  expect_success(average_all());
  for (std::size_t i = 0; i < trainers.size(); ++i) {
    const auto restored = swarm.run(trainers[i]->sgd->restore(swarm.runtime(), saved[i]));
    ASSERT_TRUE(restored) << restored.error();
  }
  draw_gradients();
  const auto average = expected.round(gradients_of(1), {1, 1});
  expect_success(average_all());
  for (std::size_t i = 0; i < trainers.size(); ++i) {
    expect_near(trainers[i]->gradients[1], average, 1e-4, "average");
    expect_near(trainers[i]->sgd->residual(1), expected.residuals[i], 2e-4, "residual");
  }
}

TEST_F(PowerSgdRounds, WhatWasSavedOfAnotherModelChangesNothing) {
  for (int i = 0; i < 2; ++i) add({{60, 50}, {40, 90}});
  draw_gradients();
  expect_success(average_all());
  auto& sgd = *trainers[0]->sgd;
  const auto saved = swarm.run(sgd.save(swarm.runtime()));
  const auto refused = [&](const char* what, auto change) {
    auto other = saved;
    change(other);
    EXPECT_EQ(swarm.run(sgd.restore(swarm.runtime(), std::move(other))).error(), Errc::bad_state) << what;
  };
  refused("a factor is missing", [](auto& s) { s.factors.pop_back(); });
  refused("a residual is missing", [](auto& s) { s.residuals.pop_back(); });
  refused("another shape", [](auto& s) { s.residuals[1].shape = {90, 40}; });
  refused("another type", [](auto& s) { s.factors[1].dtype = codec::DType::int32; });
  refused("bytes are missing", [](auto& s) { s.residuals[1].data = s.residuals[0].data; });
  refused("not finite", [](auto& s) {
    Bytes bytes(s.residuals[1].data.size(), 0xff);
    s.residuals[1].data = Slice::copy_of(bytes);
  });
  const auto after = swarm.run(sgd.save(swarm.runtime()));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(std::ranges::equal(after.factors[i].data.view(), saved.factors[i].data.view()));
    EXPECT_TRUE(std::ranges::equal(after.residuals[i].data.view(), saved.residuals[i].data.view()));
  }
}

TEST_F(PowerSgdRounds, WriteElsewhereAndScaleOnTheWay) {
  for (int i = 0; i < 2; ++i) add({{60, 50}, {7}});
  Expected expected = expected_of(0, 2);
  draw_gradients();
  const auto average = expected.round(gradients_of(0), {1, 1});
  std::vector<Values> written{Values(3000), Values(7)};
  std::size_t reported = 0;
  for (auto& tensor : trainers[0]->gradients)
    for (float& value : tensor) value *= 4;
  HostPartsOptions options{.factor = 0.25f};
  options.on_result = [&](const StretchResult& result) { reported += result.averaged ? result.stretch.length : 0; };
  std::vector<TensorSpan> memory{{trainers[0]->gradients[0], written[0]}, {trainers[0]->gradients[1], written[1]}};
  auto scaled =
      std::make_shared<HostParts>(swarm.runtime(), std::vector<TensorInfo>{{shapes[0]}, {shapes[1]}}, memory, options);
  std::vector<Task<Result<RoundReport>>> tasks;
  tasks.push_back(PowerSgdRounds::average(*trainers[0]->averager, 1, scaled));
  tasks.push_back(PowerSgdRounds::average(*trainers[1]->averager, 1, parts_of(*trainers[1])));
  expect_success(swarm.run(when_all(swarm.runtime(), std::move(tasks))));
  expect_near(written[0], average, 1e-4, "written");
  EXPECT_EQ(reported, 3007u);
}

// ---- What goes wrong

TEST_F(PowerSgdRounds, AGradientThatIsNotFiniteFailsItsOwnRoundAndNothingIsOwed) {
  for (int i = 0; i < 3; ++i) add({{60, 50}});
  draw_gradients();
  trainers[2]->gradients[0][77] = NAN;
  const auto factors = factor_of(*trainers[2], 0);
  auto results = average_all();
  ASSERT_FALSE(results[2]);
  EXPECT_EQ(results[2].error(), Errc::not_finite);
  EXPECT_THAT(trainers[2]->sgd->residual(0), ::testing::Each(0));
  EXPECT_EQ(factor_of(*trainers[2], 0), factors);
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    for (float value : trainers[i]->gradients[0]) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_F(PowerSgdRounds, AMemberOfAnotherRankIsLeftOut) {
  has_hostile_peers = true;
  for (int i = 0; i < 2; ++i) add({{60, 50}}, {2, 0.2});
  add({{60, 50}}, {5, 0.2});
  draw_gradients();
  std::vector<Values> before;
  for (const auto& trainer : trainers) before.push_back(sum_of(*trainer, 0));
  const auto results = average_all();
  for (std::size_t i = 0; i < trainers.size(); ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    expect_near(sum_of(*trainers[i], 0), Doubles(before[i].begin(), before[i].end()), 1e-5, "nothing is lost");
  }
  EXPECT_TRUE(std::ranges::any_of(results, [](const auto& result) { return !result->failed_reducers.empty(); }));
}

/// Waits before or after the first phase, so that a test can end the member there.
Scheme pausing(Scheme inner, Duration before, Duration after) {
  class Pausing final : public RoundContext {
   public:
    Pausing(RoundContext& round, Duration pause) : round_(round), pause_(pause) {}
    Runtime& runtime() const noexcept override { return round_.runtime(); }
    const Group& group() const noexcept override { return round_.group(); }
    std::size_t own_index() const noexcept override { return round_.own_index(); }
    const Terms& terms() const noexcept override { return round_.terms(); }
    TensorParts& tensors() const noexcept override { return round_.tensors(); }
    void expect_all_reduces(std::size_t count) override { round_.expect_all_reduces(count); }
    Task<Result<>> all_reduce(TensorParts& tensors, std::string phase) override {
      if (phase == "PHASE_Q") co_await runtime().sleep_for(pause_);
      co_return co_await round_.all_reduce(tensors, std::move(phase));
    }

   private:
    RoundContext& round_;
    Duration pause_;
  };
  return [=](RoundContext& round) -> Task<Result<>> {
    return [](RoundContext& of, Scheme run, Duration first, Duration second) -> Task<Result<>> {
      co_await of.runtime().sleep_for(first);
      Pausing paused(of, second);
      co_return co_await run(paused);
    }(round, inner, before, after);
  };
}

struct LostMember : PowerSgdRounds, ::testing::WithParamInterface<std::tuple<const char*, std::size_t>> {};

TEST_P(LostMember, CostsTheRestNothingThatTheyDoNotKeep) {
  const auto [phase, members] = GetParam();
  const bool in_p = std::string(phase) == "P";
  const std::vector<codec::Shape> of{{120, 70}, {2000}, {64, 3, 5, 5}};
  for (std::size_t i = 0; i + 1 < members; ++i) add(of);
  Trainer& lost = add(of);
  // The same averager with a scheme that stops on the way.
  auto options = quick();
  options.prefix = "test_grad_averager";
  options.class_name = "PowerSGDGradientAverager";
  options.scheme = pausing(lost.sgd->scheme(), in_p ? 60s : 0s, in_p ? 0s : 60s);
  lost.averager.reset();
  std::vector<TensorInfo> schema;
  for (const auto& shape : of) schema.push_back({shape});
  lost.averager = std::make_unique<Averager>(*peers.back()->dht, schema, options);
  lost.averager->start();

  for (int round = 0; round < 2; ++round) {  // in the second one the rest is on its own
    draw_gradients();
    std::vector<Values> before;
    for (std::size_t i = 0; i + 1 < members; ++i) {
      before.push_back(sum_of(*trainers[i], 0));
      before.push_back(sum_of(*trainers[i], 2));
    }
    std::vector<std::optional<Result<RoundReport>>> results(members);
    TaskGroup group(swarm.runtime());
    const std::size_t taking_part = round == 0 ? members : members - 1;
    for (std::size_t i = 0; i < taking_part; ++i)
      group.spawn([](Averager& averager, std::shared_ptr<TensorParts> parts,
                     std::optional<Result<RoundReport>>& out) -> Task<void> {
        out.emplace(co_await PowerSgdRounds::average(averager, 1, std::move(parts)));
      }(*trainers[i]->averager, parts_of(*trainers[i]), results[i]));
    swarm.pass(3s);
    if (round == 0) swarm.fabric().crash(sim::Swarm::ip(members));
    swarm.pass(25s);
    for (std::size_t i = 0; i + 1 < members; ++i) {
      if (members == 2 && round == 1) continue;  // there is no group any more
      ASSERT_TRUE(results[i]);
      ASSERT_TRUE(*results[i]) << results[i]->error();
      if (round == 0) {
        const auto& result = **results[i];
        EXPECT_TRUE(!result.lost_senders.empty() || !result.failed_reducers.empty());
      }
      const auto wanted = [&](std::size_t k) { return Doubles(before[k].begin(), before[k].end()); };
      expect_near(sum_of(*trainers[i], 0), wanted(2 * i), 2e-5, "nothing is lost");
      expect_near(sum_of(*trainers[i], 2), wanted(2 * i + 1), 2e-5, "nothing is lost");
    }
    group.cancel();
  }
}

INSTANTIATE_TEST_SUITE_P(PowerSgd, LostMember,
                         ::testing::Combine(::testing::Values("P", "Q"), ::testing::Values(2, 3, 5)));

/// It would hold P up for as long as the round lasts. P ends with its half of the time, and Q has its own.
TEST_F(PowerSgdRounds, AMemberThatIsTooSlowForPTakesNoTimeOfQ) {
  auto options = quick();
  options.sender_timeout = 25s;  // longer than a round: it is a phase's share of it that ends the waiting
  options.reducer_timeout = 30s;
  for (int i = 0; i < 5; ++i) add({{300, 200}, {2000}}, {4, 0.2}, options);
  draw_gradients();
  std::vector<Round> rounds;
  for (const auto& trainer : trainers) rounds.push_back(trainer->averager->begin({.allow_retries = false}));
  swarm.pass(4s);
  for (const Round& round : rounds) ASSERT_EQ(round.stage(), Round::Stage::awaiting_trigger);
  swarm.fabric().set_line(sim::Swarm::ip(5), {100, 100});
  for (std::size_t i = 0; i < 5; ++i) rounds[i].trigger(1, parts_of(*trainers[i]));
  for (std::size_t i = 0; i < 4; ++i) {
    const auto result = swarm.run(rounds[i].result());
    ASSERT_TRUE(result) << result.error();
    ASSERT_EQ(result->group.size(), 5u);
    EXPECT_THAT(result->lost_senders, ::testing::Each(id(4)));
    EXPECT_THAT(result->stragglers, ::testing::Each(id(4)));
    EXPECT_THAT(result->failed_reducers, ::testing::Each(id(4)));
    EXPECT_LT(result->allreduce, options.allreduce_timeout);
  }
}

TEST_F(PowerSgdRounds, ARoundThatIsCancelledOnTheWayLeavesAllAsItWas) {
  for (int i = 0; i < 2; ++i) add({{60, 50}});
  draw_gradients();
  expect_success(average_all());
  draw_gradients();
  const auto owed = trainers[0]->sgd->residual(0);
  const auto gradient = trainers[0]->gradients[0];
  const auto factors = factor_of(*trainers[0], 0);
  Round first = trainers[0]->averager->begin();
  Round second = trainers[1]->averager->begin();
  first.trigger(1, parts_of(*trainers[0]));
  swarm.pass(6s);
  ASSERT_EQ(first.stage(), Round::Stage::running) << "the other member has no gradients yet";
  first.cancel();
  EXPECT_EQ(trainers[0]->sgd->residual(0), owed);
  EXPECT_EQ(trainers[0]->gradients[0], gradient);
  EXPECT_EQ(factor_of(*trainers[0], 0), factors);
}

}  // namespace
}  // namespace cohive::averaging
