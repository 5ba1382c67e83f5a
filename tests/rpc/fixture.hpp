// Two connected hosts, bob serving, and handlers that the tests of rpc share.
#pragma once

#include <gtest/gtest.h>

#include "cohive/core/combine.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/rpc/errors.hpp"
#include "cohive/rpc/rpc.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::rpc::testing {

inline Task<Result<std::string>> shout(PeerId, std::string request) {
  for (auto& c : request) c = static_cast<char>(std::toupper(c));
  co_return request;
}

inline Task<Result<std::string>> refuse(PeerId, std::string) {
  co_return Error(cohive::Errc::not_found, "kaboom");
}

/// Counts the handlers that run.
struct Running {
  int& count;
  explicit Running(int& n) : count(n) { ++count; }
  Running(const Running&) = delete;
  ~Running() { --count; }
};

inline Task<Result<std::string>> answer_late(Runtime& runtime, int& running) {
  Running counted(running);
  co_await runtime.sleep_for(1h);
  co_return "late";
}

/// Answers each number with the sum so far; a sum of 13 is an error.
inline Task<Result<>> sum(ServerStream& stream) {
  int total = 0;
  for (;;) {
    auto request = co_await stream.receive(Deadline::never());
    if (!request) co_return request.error();
    if (!*request) break;
    total += std::stoi(to_string(**request));
    auto sent = co_await stream.send(as_bytes(std::to_string(total)), Deadline::never());
    if (!sent) co_return sent;
  }
  if (total == 13) co_return Error(cohive::Errc::malformed, "unlucky");
  co_return ok();
}

/// Reads one request, then holds the call.
inline Task<Result<>> hold_call(Runtime& runtime, ServerStream& stream, int& running) {
  Running counted(running);
  (void)co_await stream.receive(Deadline::never());
  co_await runtime.sleep_for(1h);
  co_return ok();
}

/// Everything a callee answers, or why it did not.
inline Task<Result<std::vector<std::string>>> receive_all(ClientStream& call, Deadline deadline) {
  std::vector<std::string> replies;
  for (;;) {
    auto reply = co_await call.receive(deadline);
    if (!reply) co_return reply.error();
    if (!*reply) co_return replies;
    replies.push_back(to_string(**reply));
  }
}

inline Task<Result<std::vector<std::string>>> call_sum(p2p::Host& host, PeerId peer, std::vector<int> numbers,
                                                       Deadline deadline) {
  auto call = co_await open_call(host, peer, "Test.rpc_sum", deadline);
  if (!call) co_return call.error();
  for (int number : numbers) {
    auto sent = co_await (*call)->send(as_bytes(std::to_string(number)), deadline);
    if (!sent) co_return sent.error();
  }
  auto finished = co_await (*call)->finish(deadline);
  if (!finished) co_return finished.error();
  co_return co_await receive_all(**call, deadline);
}

class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(swarm.run(alice.connect(bob.visible_addresses().front(), swarm.after(5s)))); }
  void TearDown() override {
    EXPECT_EQ(running, 0);
    owner.reset();
    EXPECT_EQ(swarm.left_behind(), "");
  }

  Result<std::string> call(const std::string& protocol, std::string request, Duration limit = 10s) {
    return swarm.run(call_unary(alice, bob.id(), protocol, std::move(request), swarm.after(limit)));
  }
  void serve_late() {
    server.add_unary("Test.rpc_late", [this](PeerId, std::string) { return answer_late(swarm.runtime(), running); });
  }
  void serve_hold() {
    server.add_streaming("Test.rpc_hold", [this](ServerStream& s) { return hold_call(swarm.runtime(), s, running); });
  }
  double calls(const std::string& method, const std::string& side, const std::string& outcome) {
    return swarm.runtime()
        .metrics()
        .counter("cohive_rpc_calls_total", "Calls, by method, side and outcome.",
                 {{"method", method}, {"side", side}, {"outcome", outcome}})
        .value();
  }

  sim::Swarm swarm;
  p2p::Host& alice = swarm.add_host();
  p2p::Host& bob = swarm.add_host();
  std::unique_ptr<Server> owner = std::make_unique<Server>(bob);
  Server& server = *owner;
  int running = 0;
};

}  // namespace cohive::rpc::testing
