// Look-ups whose name servers do not answer.
#include "transport/look_up_threads.hpp"

#include <gtest/gtest.h>

#include <latch>

#include "cohive/core/combine.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive::transport {
namespace {

/// Look-ups that wait until the test ends.
struct SilentNameServer : testing::Test {
  struct Server {
    std::latch over{1};
    std::atomic<int> asked = 0, given_up = 0, answered = 0;
  };
  ~SilentNameServer() override { server->over.count_down(); }

  static Task<void> ask(Runtime& runtime, std::shared_ptr<Server> server, NamedBy named_by = NamedBy::user) {
    const auto look_up = [server](const std::atomic<bool>& given_up) {
      if (given_up) {
        ++server->given_up;
        return std::vector<Multiaddr>();
      }
      ++server->asked;
      server->asked.notify_all();
      server->over.wait();
      return std::vector{Multiaddr::from_text("/ip4/10.0.0.1/tcp/1").value()};
    };
    (void)co_await in_background(runtime, look_up, named_by);
    ++server->answered;
  }

  std::shared_ptr<Server> server = std::make_shared<Server>();
  std::unique_ptr<Runtime> runtime = make_runtime({.seed = 1, .pool_threads = 1});
};

TEST_F(SilentNameServer, DoesNotHoldUpWorkOfThePool) {
  TaskGroup group(*runtime);
  for (int i = 0; i < 100; ++i) group.spawn(ask(*runtime, server));
  auto work = [](Runtime& r) -> Task<int> { co_return co_await r.offload([] { return 4; }); };
  EXPECT_EQ(runtime->run(work(*runtime)), 4);
  server->asked.wait(0);
  EXPECT_EQ(server->answered, 0);
}

TEST_F(SilentNameServer, OfNamesThatStrangersChoseLeavesThreadsForOurUsers) {
  TaskGroup group(*runtime);
  for (int i = 0; i < 20; ++i) group.spawn(ask(*runtime, server, NamedBy::stranger));
  const auto address = Multiaddr::from_text("/ip4/10.0.0.1/tcp/1").value();
  for (int i = 0; i < 20; ++i) {
    auto look_up = in_background(*runtime, [address](const std::atomic<bool>&) { return std::vector{address}; });
    auto in_time = [](Runtime& r, Task<std::vector<Multiaddr>> task) -> Task<Result<std::vector<Multiaddr>>> {
      co_return co_await within(r, r.after(20s), std::move(task));
    };
    const auto found = runtime->run(in_time(*runtime, std::move(look_up)));
    ASSERT_TRUE(found) << found.error();
    EXPECT_EQ(*found, std::vector{address});
  }
  server->asked.wait(0);
  EXPECT_LE(server->asked.load(), 4) << "half of the threads";
}

TEST_F(SilentNameServer, NobodyWaitsForItAtTheEnd) {
  {
    TaskGroup group(*runtime);
    group.spawn(ask(*runtime, server));
    runtime->run([](Runtime& r) -> Task<void> { co_await r.yield(); }(*runtime));
    server->asked.wait(0);
  }
  runtime.reset();
  EXPECT_EQ(server->answered, 0);
}

TEST(InBackground, BringsTheResultBack) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  for (int i = 0; i < 100; ++i) {
    const auto address = Multiaddr::from_text("/ip4/10.0.0.1/tcp/" + std::to_string(i)).value();
    const auto found =
        runtime->run(in_background(*runtime, [address](const std::atomic<bool>&) { return std::vector{address}; }));
    EXPECT_EQ(found, std::vector{address});
  }
}

}  // namespace
}  // namespace cohive::transport
