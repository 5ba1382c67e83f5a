// Trainers that run as clients, with or without one among them that can be dialled.
#include <gtest/gtest.h>

#include "cohive/core/status.hpp"
#include "train/four_trainers.hpp"
#include "train/still_model.hpp"

namespace cohive::train {
namespace {

/// How often it has been said until epoch 4. \param nodes  trainers that can be dialled
std::size_t times_said(std::size_t nodes) {
  FourTrainers trainers([](Runtime& runtime, const RunOptions&) { return std::make_unique<StillModel>(runtime, 0.0f); },
                        [nodes](RunOptions& options, std::size_t i) { options.client_mode = i >= nodes; });
  trainers.train(4);
  const std::string status = Status::of(trainers[0].run->runtime()).json(), said = "no group forms among clients";
  std::size_t times = 0;
  for (auto at = status.find(said); at != std::string::npos; at = status.find(said, at + 1)) ++times;
  return times;
}

TEST(AllClients, EachOfThemSaysItOnce) {
  EXPECT_EQ(times_said(0), kTrainers);
}

TEST(AllClients, OneThatCanBeDialledIsEnough) {
  EXPECT_EQ(times_said(1), 0u);
}

}  // namespace
}  // namespace cohive::train
