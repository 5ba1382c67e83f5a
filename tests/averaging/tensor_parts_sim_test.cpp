// Tensors that are handed over with the trigger: read and written as their owner wants it, wherever they live.
#include <gmock/gmock.h>

#include <map>

#include "averaging/averaging_fixture.hpp"
#include "averaging/detail/part_math.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kSize = 1000;
const std::vector<TensorInfo> kInfos{{{kSize}}, {{7}}};

/// What a member hands over: its values, where the results go, and what was reported.
struct Handed {
  std::vector<float> values[2], results[2];
  std::vector<StretchResult> reported;
  std::shared_ptr<HostParts> parts;
  /// The values of both tensors, one behind the other.
  static std::vector<float> all(const std::vector<float> (&tensors)[2]) {
    std::vector<float> joined = tensors[0];
    joined.insert(joined.end(), tensors[1].begin(), tensors[1].end());
    return joined;
  }
  /// How often each value was reported as averaged, or as kept.
  std::vector<int> times(bool averaged) const {
    std::vector<int> counts(kSize + 7);
    for (const auto& [stretch, was_averaged] : reported)
      for (std::size_t i = 0; was_averaged == averaged && i < stretch.length; ++i)
        ++counts[(stretch.tensor ? kSize : 0) + stretch.offset + i];
    return counts;
  }
};

class HandedOver : public Averaging {
 protected:
  /// Integers, so that means of two and sums are exact: member i has (i + 1) times what member 0 has.
  Handed& hand(HostPartsOptions options = {}, bool separate = true) {
    auto& made = *handed.emplace_back(std::make_unique<Handed>());
    for (std::size_t t = 0; t < 2; ++t) {
      made.values[t].resize(t ? 7 : kSize);
      for (std::size_t i = 0; i < made.values[t].size(); ++i)
        made.values[t][i] = static_cast<float>(handed.size() * (2 * i + 2));
      made.results[t].assign(made.values[t].size(), -1);
    }
    options.on_result = [&made](const StretchResult& result) { made.reported.push_back(result); };
    std::vector<TensorSpan> memory;
    for (std::size_t t = 0; t < 2; ++t)
      separate ? memory.emplace_back(made.values[t], made.results[t]) : memory.emplace_back(std::span(made.values[t]));
    made.parts = std::make_shared<HostParts>(swarm.runtime(), kInfos, memory, std::move(options));
    return made;
  }
  std::vector<Result<RoundReport>> average_handed() {
    auto rounds = begin_all();
    for (std::size_t i = 0; i < rounds.size(); ++i) rounds[i].trigger(1, handed[i]->parts);
    std::vector<Result<RoundReport>> results;
    for (auto& round : rounds) results.push_back(swarm.run(round.result()));
    return results;
  }
  std::vector<std::unique_ptr<Handed>> handed;
};

std::vector<float> scaled(std::vector<float> values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

TEST_F(HandedOver, ValuesAreReadWhileTheAveragesAreWrittenElsewhere) {
  for (int i = 0; i < 3; ++i) {
    add(quick());
    hand();
  }
  const auto first = Handed::all(handed[0]->values);
  for (auto& result : average_handed()) ASSERT_TRUE(result) << result.error();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Handed::all(handed[i]->values), scaled(first, static_cast<float>(i + 1)));
    EXPECT_EQ(Handed::all(handed[i]->results), scaled(first, 2));
    EXPECT_EQ(handed[i]->times(true), std::vector<int>(kSize + 7, 1)) << "each value is reported once";
    EXPECT_EQ(handed[i]->times(false), std::vector<int>(kSize + 7, 0));
  }
}

TEST_F(HandedOver, ResultsMayBeDifferencesAndValuesSums) {
  for (int i = 0; i < 3; ++i) {
    add(quick());
    hand({.differences = true, .factor = 0.5f});
  }
  const auto half = scaled(Handed::all(handed[0]->values), 0.5f);
  for (auto& result : average_handed()) ASSERT_TRUE(result) << result.error();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Handed::all(handed[i]->values), scaled(half, static_cast<float>(i + 1))) << "the factor, once";
    EXPECT_EQ(Handed::all(handed[i]->results), scaled(half, 1 - static_cast<float>(i)));
  }
}

/// Where results go, and with what codec.
struct LossyCase {
  const char* name;
  bool separate, differences;
  codec::Codec codec;
};
class LostReducers : public HandedOver, public ::testing::WithParamInterface<LossyCase> {};
INSTANTIATE_TEST_SUITE_P(Ways, LostReducers,
                         ::testing::Values(LossyCase{"InPlace", false, false, codec::Codec::none},
                                           LossyCase{"Elsewhere", true, false, codec::Codec::none},
                                           LossyCase{"Differences", true, true, codec::Codec::none},
                                           LossyCase{"Halves", true, false, codec::Codec::float16}),
                         [](const auto& test) { return test.param.name; });

TEST_P(LostReducers, LeaveOwnValuesThatAreReportedOnceAtTheEnd) {
  auto options = quick();
  options.codec = GetParam().codec;
  for (int i = 0; i < 3; ++i) {
    add(options);
    hand({.differences = GetParam().differences, .factor = 0.5f}, GetParam().separate);
  }
  const auto half = scaled(Handed::all(handed[0]->values), 0.5f);
  auto rounds = begin_all();
  swarm.pass(4s);
  for (auto& round : rounds) ASSERT_EQ(round.stage(), Round::Stage::awaiting_trigger);
  swarm.fabric().crash(sim::Swarm::ip(3));
  for (std::size_t i = 0; i < 2; ++i) rounds[i].trigger(1, handed[i]->parts);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto result = swarm.run(rounds[i].result());
    ASSERT_TRUE(result) << result.error();
    ASSERT_GT(result->parts_failed, 0u);
    ASSERT_LT(result->parts_failed, result->parts_total);
    const Handed& mine = *handed[i];
    const auto written = Handed::all(GetParam().separate ? mine.results : mine.values);
    const auto averaged = mine.times(true), kept = mine.times(false);
    const auto own = static_cast<float>(i + 1);
    for (std::size_t k = 0; k < written.size(); ++k) {
      ASSERT_EQ(averaged[k] + kept[k], 1) << k;
      const float base = GetParam().differences ? own * half[k] : 0;
      ASSERT_NEAR(written[k], (averaged[k] ? 1.5f : own) * half[k] - base, 1e-3f * half[k]) << k;
    }
    EXPECT_EQ(mine.parts->averaged(), static_cast<std::size_t>(std::ranges::count(averaged, 1)));
  }
}

TEST_F(HandedOver, ARoundThatFailedIsCompletedByItsOwnerWhoHasTheTensorsBack) {
  add(quick());
  hand({.factor = 0.5f});
  auto rounds = begin_all({.timeout = 3s});
  rounds[0].trigger(1, handed[0]->parts);
  EXPECT_EQ(swarm.run(rounds[0].result()).error(), Errc::no_group);
  EXPECT_EQ(handed[0]->parts.use_count(), 1);
  EXPECT_TRUE(handed[0]->reported.empty());
  const auto before = Handed::all(handed[0]->values);
  swarm.run(handed[0]->parts->finish());
  EXPECT_EQ(Handed::all(handed[0]->results), scaled(before, 0.5f));
  EXPECT_EQ(handed[0]->times(false), std::vector<int>(kSize + 7, 1));
}

TEST_F(HandedOver, TensorsAreExchangedOnceWhateverFollows) {
  // The exchange takes longer than it may: a round in which nothing was handed over would look for another group.
  auto options = quick();
  options.allreduce_timeout = 100ms;
  for (int i = 0; i < 2; ++i) {
    add(options);
    hand();
  }
  swarm.fabric().set_default_link({.latency = 60ms});
  auto rounds = begin_all({.timeout = 30s, .allow_retries = true});
  for (std::size_t i = 0; i < 2; ++i) rounds[i].trigger(1, handed[i]->parts);
  const auto start = swarm.runtime().now();
  for (auto& round : rounds) EXPECT_EQ(swarm.run(round.result()).error(), cohive::Errc::timeout);
  EXPECT_LT(swarm.runtime().now() - start, 8s);
  for (auto& mine : handed) {
    swarm.run(mine->parts->finish());
    const auto averaged = mine->times(true), kept = mine->times(false);
    for (std::size_t k = 0; k < averaged.size(); ++k) ASSERT_EQ(averaged[k] + kept[k], 1);
  }
}

TEST_F(HandedOver, TensorsOfAnotherShapeAreRefused) {
  for (int i = 0; i < 2; ++i) add(quick());
  hand();
  std::vector<float> other(5);
  const auto wrong = std::make_shared<HostParts>(swarm.runtime(), std::vector<TensorInfo>{{{5}}},
                                                 std::vector<TensorSpan>{TensorSpan(other)});
  auto rounds = begin_all({.allow_retries = false});
  rounds[0].trigger(1, handed[0]->parts);
  rounds[1].trigger(1, wrong);
  EXPECT_EQ(swarm.run(rounds[1].result()).error(), cohive::Errc::invalid_argument);
  EXPECT_TRUE(swarm.run(rounds[0].result())) << "the other member is not harmed";
}

// ---- Memory that only a device reaches

/// Tensors of a device: everything takes a while, is done in a host's copy, and nothing is fused.
class DeviceTensors final : public TensorParts {
 public:
  DeviceTensors(Runtime& runtime, std::vector<std::vector<float>>& memory)
      : runtime_(runtime), host_(runtime, kInfos, {TensorSpan(memory[0]), TensorSpan(memory[1])}) {}

  const std::vector<TensorInfo>& infos() const noexcept override { return kInfos; }
  Task<Result<EncodedStretch>> encode(Stretch stretch, codec::CodecSpec codec) override {
    const Busy busy(*this);
    co_await runtime_.sleep_for(delay());
    auto encoded = co_await host_.encode(stretch, codec);
    if (!encoded) co_return encoded;
    auto copy = std::make_shared<Slice>(Slice::copy_of(encoded->bytes));
    co_return EncodedStretch{copy->view(), copy};
  }
  Task<Result<std::shared_ptr<OwnContribution>>> contribute(Stretch stretch, codec::CodecSpec, Terms terms) override {
    const Busy busy(*this);
    co_await runtime_.sleep_for(delay());
    auto values = co_await read_values(host_, stretch);
    if (!values) co_return values.error();
    co_return std::make_shared<HostCopy>(std::move(*values), terms.weight);
  }
  Task<Result<>> apply(Stretch stretch, Answer answer, Terms terms) override {
    const Busy busy(*this);
    co_await runtime_.sleep_for(delay());
    co_return co_await host_.apply(stretch, std::move(answer), terms);
  }
  Task<void> finish() override { co_await host_.finish(); }

  int in_progress = 0, most_in_progress = 0;

 private:
  class HostCopy final : public OwnContribution {
   public:
    HostCopy(std::vector<float> values, double weight) : values_(std::move(values)), weight_(weight) {}
    Result<bool> add(std::span<float> sum, Adding how) override { return add_values(values_, weight_, sum, how); }
    Result<ReadValues> open() override {
      return ReadValues([values = values_](std::size_t first, std::span<float> out) {
        std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
        return true;
      });
    }
    bool applied() const noexcept override { return false; }
    void revoke() noexcept override {}

   private:
    std::vector<float> values_;
    double weight_;
  };
  struct Busy {
    DeviceTensors& self;
    explicit Busy(DeviceTensors& tensors) : self(tensors) {
      self.most_in_progress = std::max(self.most_in_progress, ++self.in_progress);
    }
    ~Busy() { --self.in_progress; }
  };
  Duration delay() { return std::chrono::microseconds(100 + runtime_.random()() % 5000); }

  Runtime& runtime_;
  HostParts host_;
};

class OnADevice : public HandedOver, public ::testing::WithParamInterface<std::tuple<codec::Codec, bool>> {};
INSTANTIATE_TEST_SUITE_P(Codecs, OnADevice,
                         ::testing::Combine(::testing::Values(codec::Codec::none, codec::Codec::float16,
                                                              codec::Codec::uniform8),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(codec::name_of(std::get<0>(test.param))) +
                                  (std::get<1>(test.param) ? "Trimmed" : "");
                         });

TEST_P(OnADevice, ARoundGivesTheValuesOfHostMemory) {
  auto options = quick();
  options.codec = std::get<0>(GetParam());
  if (std::get<1>(GetParam())) options.aggregation = TrimmedMean{0.2};
  std::vector<std::vector<std::vector<float>>> memory;
  for (int i = 0; i < 2; ++i) {
    add(options);
    Handed& mine = hand({}, false);
    memory.emplace_back(std::begin(mine.values), std::end(mine.values));
  }
  for (auto& result : average_handed()) ASSERT_TRUE(result) << result.error();
  std::vector<std::shared_ptr<DeviceTensors>> tensors;
  for (auto& one : memory) tensors.push_back(std::make_shared<DeviceTensors>(swarm.runtime(), one));
  auto rounds = begin_all();
  for (std::size_t i = 0; i < 2; ++i) rounds[i].trigger(1, tensors[i]);
  for (auto& round : rounds) {
    const auto result = swarm.run(round.result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->parts_failed, 0u);
  }
  // The order of the group, and with it who reduces what, differs between the two: exact where no codec lies between.
  const float tolerance = std::get<0>(GetParam()) == codec::Codec::none ? 0.0f : 0.02f;
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_GT(tensors[i]->most_in_progress, 1) << "it works ahead while the network waits";
    for (std::size_t t = 0; t < 2; ++t)
      for (std::size_t k = 0; k < memory[i][t].size(); ++k)
        ASSERT_NEAR(memory[i][t][k], handed[i]->values[t][k], tolerance * (10 + std::abs(memory[i][t][k])));
  }
}

TEST_F(HandedOver, ACancelledRoundLeavesNoOperationOfADeviceBehind) {
  for (int i = 0; i < 2; ++i) add(quick());
  std::vector<std::vector<std::vector<float>>> memory(2, {std::vector<float>(kSize, 1), std::vector<float>(7, 1)});
  std::vector<std::shared_ptr<DeviceTensors>> tensors;
  for (auto& one : memory) tensors.push_back(std::make_shared<DeviceTensors>(swarm.runtime(), one));
  auto rounds = begin_all();
  swarm.pass(4s);
  for (std::size_t i = 0; i < 2; ++i) rounds[i].trigger(1, tensors[i]);
  swarm.pass(2ms);
  ASSERT_GT(tensors[0]->in_progress, 0) << "or this test shows nothing";
  rounds[0].cancel();
  EXPECT_EQ(tensors[0]->in_progress, 0);
  EXPECT_EQ(tensors[0].use_count(), 1);
  EXPECT_EQ(swarm.run(rounds[0].result()).error(), Errc::round_cancelled);
  EXPECT_TRUE(swarm.run(rounds[1].result()));
}

}  // namespace
}  // namespace cohive::averaging
