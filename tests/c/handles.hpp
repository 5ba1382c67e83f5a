// What tests of the C interface share: handles that are given back.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "cohive/cohive.h"

namespace c_tests {

using Clock = std::chrono::steady_clock;
inline constexpr int kLong = 30'000;  // milliseconds

struct TicketOwner {
  cohive_ticket* handle = nullptr;
  ~TicketOwner() { cohive_ticket_free(handle); }
};

inline std::string bytes_of(cohive_ticket* ticket) {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  EXPECT_EQ(cohive_ticket_result(ticket, &data, &size), COHIVE_OK);
  return {reinterpret_cast<const char*>(data), size};
}

/// A swarm that is left and freed at the end of the test.
struct SwarmOwner {
  explicit SwarmOwner(const std::string& options, cohive_validator* validator = nullptr) {
    TicketOwner joined;
    EXPECT_EQ(cohive_swarm_open(options.c_str(), &validator, validator ? 1 : 0, &handle, &joined.handle), COHIVE_OK)
        << cohive_last_error();
    EXPECT_EQ(cohive_ticket_wait(joined.handle, kLong), COHIVE_OK) << cohive_last_error();
    status = bytes_of(joined.handle);
  }
  ~SwarmOwner() {
    TicketOwner closed;
    EXPECT_EQ(cohive_swarm_close(handle, &closed.handle), COHIVE_OK);
    EXPECT_EQ(cohive_ticket_wait(closed.handle, kLong), COHIVE_OK);
    cohive_swarm_free(handle);
  }
  std::string address() const {
    const std::size_t begin = status.find("/ip4/127.0.0.1/");
    std::size_t end = begin;
    while (end < status.size() && status[end] > ' ' && status[end] < 127) ++end;
    return status.substr(begin, end - begin);
  }
  cohive_swarm* handle = nullptr;
  std::string status;
};

inline constexpr const char* kAlone = R"({"bootstrap": true, "host_maddrs": ["/ip4/127.0.0.1/tcp/0"]})";

inline std::string joining(const std::string& address, const std::string& more = {}) {
  return R"({"initial_peers": [")" + address + R"("], "host_maddrs": ["/ip4/127.0.0.1/tcp/0"])" + more + "}";
}

/// Two trainers, each on a thread, make batches of such gradients until they have averaged, and finish.
template <class Trainer>
void train_together(Trainer& ours, float gradient, Trainer& theirs, float other_gradient) {
  const auto train = [](Trainer& trainer, float value) {
    const auto end = Clock::now() + std::chrono::milliseconds(kLong);
    std::uint64_t members = 0;
    while (members < 2 && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // that the batch takes
      members = trainer.step(value, 4).grad_group;
    }
    EXPECT_EQ(members, 2u) << "they do not meet";
    std::uint64_t group = 0;
    EXPECT_EQ(cohive_trainer_finish(trainer.handle, &group), COHIVE_OK) << cohive_last_error();
  };
  std::thread other([&] { train(theirs, other_gradient); });
  train(ours, gradient);
  other.join();
}

inline const std::uint8_t* raw(const std::string& bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

}  // namespace c_tests
