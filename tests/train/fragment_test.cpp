// How a model is divided into fragments.
#include "train/exchanges/fragment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace cohive::train {
namespace {

std::vector<averaging::TensorInfo> model_of(const std::vector<std::uint32_t>& sizes) {
  std::vector<averaging::TensorInfo> model;
  for (const auto size : sizes) model.push_back({.shape = {size}});
  return model;
}

std::vector<std::vector<std::size_t>> divided(const std::vector<std::uint32_t>& sizes, std::size_t count) {
  std::vector<std::vector<std::size_t>> tensors;
  for (const auto& fragment : fragments_of(model_of(sizes), count)) tensors.push_back(fragment.tensors);
  return tensors;
}

using Tensors = std::vector<std::vector<std::size_t>>;

TEST(Fragments, OfEqualLayersAreStrided) {
  EXPECT_EQ(divided({8, 8, 8, 8, 8, 8}, 3), (Tensors{{0, 3}, {1, 4}, {2, 5}}));
  EXPECT_EQ(divided({8, 8, 8}, 1), (Tensors{{0, 1, 2}}));
}

TEST(Fragments, AreAsEqualAsWholeTensorsAllow) {
  EXPECT_EQ(divided({100, 30, 30, 40, 1}, 2), (Tensors{{0, 4}, {1, 2, 3}}));
  EXPECT_EQ(divided({1, 60, 50, 40, 30, 20}, 2), (Tensors{{1, 4, 5}, {0, 2, 3}}));
}

TEST(Fragments, HaveATensorEach) {
  EXPECT_EQ(divided({5, 0, 0}, 3), (Tensors{{0}, {1}, {2}}));
  EXPECT_THROW((void)divided({5, 5}, 3), std::invalid_argument);
}

TEST(Fragments, TakeTurns) {
  const auto fragments = fragments_of(model_of({1, 1, 1}), 3);
  for (std::uint64_t epoch = 1; epoch < 10; ++epoch)
    EXPECT_EQ(std::ranges::count_if(fragments, [&](const Fragment& one) { return one.due(epoch); }), 1) << epoch;
  EXPECT_EQ(fragments[1].name("outer_step"), "outer_step_2_of_3");
  EXPECT_EQ(fragments_of(model_of({1}), 1)[0].name("outer_step"), "outer_step") << "as before there were fragments";
}

TEST(Fragments, LeaveTheTensorsOfOthersOut) {
  const auto fragment = fragments_of(model_of({2, 3, 4}), 2)[1];
  ASSERT_EQ(fragment.tensors, (std::vector<std::size_t>{0, 1}));
  std::vector<std::vector<float>> values{{1, 2}, {3, 4, 5}};
  const auto places = fragment.in_model(values);
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[0].data(), values[0].data());
  EXPECT_EQ(places[1].size(), 3u);
  EXPECT_TRUE(places[2].empty());
  EXPECT_EQ(fragment.infos(model_of({2, 3, 4}))[1].key, codec::TensorKey(std::uint64_t{1}));
}

}  // namespace
}  // namespace cohive::train
