#include "torch/model_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cohive/averaging/errors.hpp"
#include "torch/known_optimizer.hpp"
#include "torch/versions.hpp"

namespace cohive::libtorch {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;

/// An Adam that has taken two steps.
struct Model {
  torch::Tensor weight = torch::full({3, 2}, 0.5f).requires_grad_();
  torch::Tensor bias = torch::zeros({2}).requires_grad_();
  Adam adam{{weight, bias}, AdamOptions(0.1)};
  void take_steps(int count) {
    for (int i = 0; i < count; ++i) {
      adam.zero_grad();
      (weight.pow(2).sum() + (bias - 1).pow(2).sum()).backward();
      adam.step();
    }
  }
};

averaging::SharedState pack_state(torch::optim::Optimizer& optimizer, std::uint64_t epoch) {
  return copy_of(describe_state(optimizer, parameters_of(optimizer), epoch));
}

Result<std::uint64_t> load_state(torch::optim::Optimizer& optimizer, const averaging::DownloadedState& state,
                                 std::uint64_t least_epoch) {
  OptimizerLayout layout;
  return libtorch::load_state(optimizer, parameters_of(optimizer), state, least_epoch, {}, layout);
}

averaging::DownloadedState downloaded(const averaging::SharedState& shared) {
  averaging::DownloadedState state;
  state.metadata = shared.metadata;
  state.tensors = shared.tensors;
  return state;
}

TEST(ModelState, GoesOnWhereTheOtherWas) {
  Model donor, receiver;
  donor.take_steps(2);
  EXPECT_EQ(load_state(receiver.adam, downloaded(pack_state(donor.adam, 7)), 0).value(), 7u);
  donor.take_steps(3);
  receiver.take_steps(3);
  EXPECT_TRUE(torch::equal(donor.weight, receiver.weight));
  EXPECT_TRUE(torch::equal(donor.bias, receiver.bias));
}

TEST(ModelState, StatisticsThatRoundingOrAPeerHasSpoiltAreMadeUsable) {
  Model donor, receiver;
  donor.take_steps(2);
  auto square = statistics_of(donor.adam, donor.weight)[1];
  ASSERT_EQ(square.first, "exp_avg_sq");
  square.second.fill_(-1e-9);
  ASSERT_TRUE(load_state(receiver.adam, downloaded(pack_state(donor.adam, 7)), 0));
  receiver.take_steps(1);
  EXPECT_LT((receiver.weight - donor.weight).abs().max().item<float>(), 1) << "it is finite, and no long step";

  struct Centred {
    torch::Tensor weight = torch::full({3}, 0.5f).requires_grad_();
    torch::optim::RMSprop optimizer{{weight}, torch::optim::RMSpropOptions(0.1).centered(true)};
    void take_step(float gradient) {
      weight.mutable_grad() = torch::full({3}, gradient);
      optimizer.step();
    }
  } centred, newcomer;
  centred.take_step(1);
  for (auto& [name, value] : statistics_of(centred.optimizer, centred.weight))
    if (name != "step") value.fill_(name == "grad_avg" ? 2 : 1);
  ASSERT_TRUE(load_state(newcomer.optimizer, downloaded(pack_state(centred.optimizer, 7)), 0));
  newcomer.take_step(0);
  EXPECT_TRUE(torch::isfinite(newcomer.weight).all().item<bool>());
}

TEST(ModelState, ViewsOutliveAnExchangeOfMemoryAndNoWriting) {
  Model model;
  model.take_steps(1);
  const auto state = view_of(describe_state(model.adam, parameters_of(model.adam), 7));
  const auto versions = model.weight._version();
  model.weight.set_data(model.weight.detach().clone());
  note_replaced(model.weight);
  EXPECT_GT(model.weight._version(), versions);
  EXPECT_TRUE(state.reader->tensors()->check()) << "they read the memory of before";
  note_written(model.bias);
  EXPECT_FALSE(state.reader->tensors()->check());
}

TEST(ModelState, DimensionsThatDoNotTravelAreRefused) {
  EXPECT_EQ(shape_of(torch::empty({0, 0xffffffff})), (codec::Shape{0, 0xffffffff}));
  EXPECT_THROW(shape_of(torch::empty({0, std::int64_t{1} << 32})), std::invalid_argument);
}

TEST(ModelState, EveryGroupKeepsTheStatisticsThatItsOptionsAskFor) {
  struct Groups {
    torch::Tensor plain = torch::full({3}, 0.5f).requires_grad_(), amsgrad = torch::full({2}, 0.25f).requires_grad_();
    Adam adam{std::vector<torch::optim::OptimizerParamGroup>{
        {{plain}, std::make_unique<AdamOptions>(0.1)},
        {{amsgrad}, std::make_unique<AdamOptions>(AdamOptions(0.1).amsgrad(true))}}};
    void take_steps(int count) {
      for (int i = 0; i < count; ++i) {
        adam.zero_grad();
        (plain.pow(2).sum() + amsgrad.pow(4).sum()).backward();
        adam.step();
      }
    }
  } donor, receiver;
  donor.take_steps(2);
  ASSERT_TRUE(load_state(receiver.adam, downloaded(pack_state(donor.adam, 7)), 0));
  donor.take_steps(2);
  receiver.take_steps(2);
  EXPECT_TRUE(torch::equal(donor.plain, receiver.plain));
  EXPECT_TRUE(torch::equal(donor.amsgrad, receiver.amsgrad));
}

TEST(ModelState, MomentumOfSomeGroupsIsHandedOn) {
  const auto make = [](torch::Tensor& with, torch::Tensor& without) {
    using torch::optim::SGDOptions;
    return torch::optim::SGD(
        std::vector<torch::optim::OptimizerParamGroup>{
            {{without}, std::make_unique<SGDOptions>(0.1)},
            {{with}, std::make_unique<SGDOptions>(SGDOptions(0.1).momentum(0.9))}},
        SGDOptions(0.1));
  };
  const auto step = [](torch::optim::SGD& sgd, torch::Tensor& one, torch::Tensor& other) {
    sgd.zero_grad();
    (one.pow(2).sum() + other.pow(2).sum()).backward();
    sgd.step();
  };
  torch::Tensor values[4];
  for (auto& value : values) value = torch::full({2}, 0.5f).requires_grad_();
  auto donor = make(values[0], values[1]), receiver = make(values[2], values[3]);
  for (int i = 0; i < 2; ++i) step(donor, values[0], values[1]);
  ASSERT_TRUE(load_state(receiver, downloaded(pack_state(donor, 7)), 0));
  step(donor, values[0], values[1]);
  step(receiver, values[2], values[3]);
  EXPECT_TRUE(torch::equal(values[0], values[2])) << "with momentum";
  EXPECT_TRUE(torch::equal(values[1], values[3]));
}

TEST(ModelState, WhatDoesNotFitIsRefusedAndChangesNothing) {
  Model donor;
  donor.take_steps(2);
  const auto good = pack_state(donor.adam, 7);
  const auto refused = [&](auto spoil) {
    Model receiver;
    auto state = downloaded(good);
    spoil(state);
    const auto result = load_state(receiver.adam, state, 3);
    EXPECT_FALSE(result);
    if (!result) EXPECT_EQ(result.error(), averaging::Errc::bad_state);
    EXPECT_TRUE(torch::equal(receiver.weight, torch::full({3, 2}, 0.5f)));
    EXPECT_TRUE(receiver.adam.state().empty());
  };
  const auto spoil_value = [](codec::Tensor& tensor, float value) {
    Bytes bytes = to_bytes(tensor.data.view());
    std::memcpy(bytes.data(), &value, sizeof value);
    tensor.data = Slice::copy_of(bytes);
  };
  refused([&](auto& state) { spoil_value(state.tensors[0], std::numeric_limits<float>::quiet_NaN()); });
  refused([&](auto& state) { spoil_value(state.tensors[1], std::numeric_limits<float>::infinity()); });
  refused([&](auto& state) { spoil_value(state.tensors[2], -std::numeric_limits<float>::infinity()); });
  for (float steps : {-1.0f, 1e30f}) refused([&](auto& state) { spoil_value(state.tensors[4], steps); });
  refused([](auto& state) { state.tensors[1].shape = {1, 2}; });
  refused([](auto& state) { state.tensors[0].data = Slice::copy_of(Bytes(20)); });
  refused([](auto& state) { state.tensors[0].dtype = codec::DType::int32; });
  refused([](auto& state) { state.tensors.resize(1); });
  refused([](auto& state) { state.metadata = msgpack::Map{}; });
  refused([](auto& state) { state.metadata = msgpack::Map{{{"epoch", 2}}}; });
}

/// A state with a running mean and a count of batches.
struct WithExtras {
  Model model;
  std::vector<torch::Tensor> extras = {torch::full({3}, 0.5f), torch::tensor(0)};
  averaging::DownloadedState packed() {
    return downloaded(copy_of(describe_state(model.adam, parameters_of(model.adam), 7, extras)));
  }
  Result<std::uint64_t> load(const averaging::DownloadedState& state) {
    OptimizerLayout layout;
    return libtorch::load_state(model.adam, parameters_of(model.adam), state, 0, extras, layout);
  }
};

TEST(ModelState, ExtraTensorsComeAfterTheParameters) {
  WithExtras donor, receiver;
  donor.model.take_steps(2);
  donor.extras[0].fill_(2);
  donor.extras[1].fill_(1'000'000'007);
  const auto state = donor.packed();
  ASSERT_EQ(state.tensors.size(), 2u + 2 + 6) << "parameters, extra tensors, what Adam keeps";
  EXPECT_EQ(state.tensors[2].shape, codec::Shape{3});
  EXPECT_EQ(state.tensors[3].dtype, codec::DType::int64);
  EXPECT_EQ(receiver.load(state).value(), 7u);
  EXPECT_TRUE(torch::equal(receiver.extras[0], donor.extras[0]));
  EXPECT_TRUE(torch::equal(receiver.extras[1], donor.extras[1]));
  donor.model.take_steps(1);
  receiver.model.take_steps(1);
  EXPECT_TRUE(torch::equal(donor.model.weight, receiver.model.weight)) << "statistics came behind them";
}

TEST(ModelState, ExtraTensorsThatDoNotFitAreRefusedAndChangeNothing) {
  WithExtras donor;
  donor.model.take_steps(2);
  const auto refused = [&](auto spoil) {
    WithExtras receiver;
    auto state = donor.packed();
    spoil(state, receiver);
    const auto result = receiver.load(state);
    EXPECT_FALSE(result);
    if (!result) EXPECT_EQ(result.error(), averaging::Errc::bad_state);
    EXPECT_TRUE(torch::equal(receiver.model.weight, torch::full({3, 2}, 0.5f)));
    EXPECT_TRUE(receiver.model.adam.state().empty());
  };
  refused([](auto& state, auto&) { state.tensors[2].shape = {1, 3}; });
  refused([](auto& state, auto&) { state.tensors[2].dtype = codec::DType::int32; });
  refused([](auto& state, auto&) { state.tensors[3].dtype = codec::DType::float64; });
  refused([](auto& state, auto&) { state.tensors[3].dtype = codec::DType::complex64; });
  refused([](auto& state, auto&) { state.tensors[3].data = Slice::copy_of(Bytes(7)); });
  refused([](auto& state, auto&) {
    const float infinity = std::numeric_limits<float>::infinity();
    Bytes bytes = to_bytes(state.tensors[2].data.view());
    std::memcpy(bytes.data(), &infinity, sizeof infinity);
    state.tensors[2].data = Slice::copy_of(bytes);
  });
  refused([](auto& state, auto&) { state.tensors.erase(state.tensors.begin() + 2); });
  refused([](auto& state, auto&) { state.tensors.resize(3); });
  refused([](auto&, auto& receiver) { receiver.extras.pop_back(); });
  refused([](auto&, auto& receiver) { receiver.extras.clear(); });
  refused([](auto&, auto& receiver) { receiver.extras.push_back(torch::zeros({3})); });
}

TEST(ModelState, WhatWasNeverSteppedIsSentAsItIsBeforeTheFirstStep) {
  Model donor, receiver;
  donor.bias.set_requires_grad(false);
  donor.take_steps(2);
  const auto state = pack_state(donor.adam, 7);
  ASSERT_EQ(state.tensors.size(), 2u + 6) << "hivemind refuses a state that lacks statistics";
  ASSERT_TRUE(load_state(receiver.adam, downloaded(state), 0));
  receiver.bias.set_requires_grad(false);
  for (auto* model : {&donor, &receiver}) model->take_steps(1);
  EXPECT_TRUE(torch::equal(donor.weight, receiver.weight));
  for (auto* model : {&donor, &receiver}) {
    model->bias.set_requires_grad(true);
    model->take_steps(2);
  }
  EXPECT_TRUE(torch::equal(donor.bias, receiver.bias)) << "its first steps are first steps";
}

TEST(ModelState, AStateIsCompleteBeforeTheFirstStep) {
  Model donor;
  EXPECT_EQ(pack_state(donor.adam, 0).tensors.size(), 2u + 6);
  EXPECT_TRUE(donor.adam.state().empty()) << "and the optimizer is left as it is";
}

TEST(ModelState, APeerThatRefusesTheStateIsGivenThatOfATrainerWithAScheduler) {
  Model donor;
  const auto state = pack_state(donor.adam, 7);
  ASSERT_TRUE(state.if_refused);
  const auto leaves = [](const msgpack::Value& metadata) {
    return metadata.get_if<msgpack::Map>()->find("optimizer_metadata")->get_if<msgpack::Array>()->items.size();
  };
  EXPECT_EQ(leaves(state.if_refused->metadata), leaves(state.metadata) + 1);
}

TEST(ModelState, ARefusalSaysWhatDiffers) {
  Model donor;
  donor.take_steps(1);
  const auto sentence_of = [&](auto spoil) {
    Model receiver;
    auto state = downloaded(pack_state(donor.adam, 7));
    spoil(state);
    const auto result = load_state(receiver.adam, state, 3);
    return result ? std::string("taken") : result.error().message();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(sentence_of([](auto& state) { state.tensors[1].shape = {1, 2}; }),
              HasSubstr("parameter 1 has another shape (1 x 2 there, 2 here)"));
  EXPECT_THAT(sentence_of([](auto& state) { state.tensors[0].dtype = codec::DType::int32; }),
              HasSubstr("parameter 0 has another kind of numbers (int32) or values that are not finite"));
  EXPECT_THAT(sentence_of([](auto& state) { state.tensors.resize(6); }),
              HasSubstr("it has 6 tensors, 6 of them of its optimizer, and this model has 2 parameters"));
  EXPECT_THAT(sentence_of([](auto& state) { state.tensors[3].shape = {6}; }),
              HasSubstr("exp_avg_sq of parameter 0 has another shape (6 there, 3 x 2 here)"));
}

TEST(ModelState, WhatDiffersWithoutHarmIsSaid) {
  Model donor, receiver;
  donor.take_steps(2);
  OptimizerLayout layout;
  const auto note = [&](torch::optim::Optimizer& ours, const averaging::SharedState& state) {
    return check_state(ours, downloaded(state), 0, {}, layout).value().note;
  };
  using ::testing::StartsWith;
  EXPECT_EQ(note(receiver.adam, pack_state(donor.adam, 7)), "");
  torch::optim::SGD sgd({receiver.weight, receiver.bias}, torch::optim::SGDOptions(0.1).momentum(0.9));
  EXPECT_THAT(note(sgd, pack_state(donor.adam, 7)),
              StartsWith("was taken, but not the statistics of its optimizer: it has 6 and ours keeps 2 "
                         "(momentum_buffer of each parameter); it is Adam or AdamW"));
  static_cast<AdamOptions&>(receiver.adam.param_groups()[0].options()).lr(0.5);
  EXPECT_EQ(note(receiver.adam, pack_state(donor.adam, 7)),
            "was taken, but its optimizer is not set up as ours: lr is 0.1 there and 0.5 here");
}

TEST(ModelState, AsManyStatisticsOfAnotherOptimizerAreNotTaken) {
  Model donor, receiver;
  donor.take_steps(2);
  torch::optim::RMSprop rmsprop({receiver.weight, receiver.bias}, torch::optim::RMSpropOptions(0.1).momentum(0.9));
  ASSERT_TRUE(load_state(rmsprop, downloaded(pack_state(donor.adam, 7)), 0));
  EXPECT_TRUE(torch::equal(donor.weight, receiver.weight));
  EXPECT_TRUE(rmsprop.state().empty());
}

TEST(ModelState, AnotherKindOfOptimizerTakesTheParametersAlone) {
  Model donor, receiver;
  donor.take_steps(2);
  torch::optim::SGD sgd({receiver.weight, receiver.bias}, torch::optim::SGDOptions(0.1).momentum(0.9));
  EXPECT_TRUE(load_state(sgd, downloaded(pack_state(donor.adam, 7)), 0));
  EXPECT_TRUE(torch::equal(donor.weight, receiver.weight));
  EXPECT_TRUE(sgd.state().empty());
}

}  // namespace
}  // namespace cohive::libtorch
