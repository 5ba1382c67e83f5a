// How work is given up: once, and never after its end.
#include "c/give_up.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>

namespace cohive::c {
namespace {

TEST(GiveUp, TheEndOfTheWorkWaitsForACallThatGoesOn) {
  GiveUp give_up;
  std::latch entered(1), released(1);
  std::atomic<bool> ended = false;
  give_up.set([&] {
    entered.count_down();
    released.wait();
  });
  std::thread asking([&] { give_up.ask(); });
  entered.wait();
  std::thread ending([&] {
    give_up.end();
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(ended) << "the function may post to a loop that goes with the end of the work";
  released.count_down();
  ending.join();
  asking.join();
}

TEST(GiveUp, CallsItsFunctionOnceHoweverEarlyOrOftenItIsAsked) {
  GiveUp give_up;
  int calls = 0;
  give_up.ask();
  EXPECT_TRUE(give_up.asked());
  give_up.set([&] { ++calls; });
  give_up.ask();
  EXPECT_EQ(calls, 1);
}

TEST(GiveUp, CallsNothingAfterTheEnd) {
  GiveUp give_up;
  int calls = 0;
  give_up.set([&] { ++calls; });
  give_up.end();
  give_up.ask();
  give_up.set([&] { ++calls; });
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(give_up.asked());
}

}  // namespace
}  // namespace cohive::c
