// Clients that hardly read what they are answered: it counts as theirs, and is kept of their last round alone.
#include <algorithm>

#include "averaging/averaging_fixture.hpp"
#include "averaging/wire.hpp"
#include "cohive/averaging/scheme.hpp"
#include "cohive/core/memory_budget.hpp"
#include "cohive/proto/averaging.pb.h"
#include "cohive/rpc/rpc.hpp"

namespace cohive::averaging {
namespace {

class SlowReaders : public Averaging {
 protected:
  static constexpr std::size_t kValues = 1'000'000, kPartValues = 4096;

  AveragerOptions patient(PeerMode mode) {
    auto options = quick();
    options.mode = mode;
    options.part_size_bytes = kPartValues * sizeof(float);
    options.sender_timeout = 30s;
    options.reducer_timeout = 60s;
    options.allreduce_timeout = 120s;
    return options;
  }
  /// Reads five kilobytes a second.
  static Task<void> read_slowly(Runtime& runtime, rpc::ClientStreamPtr call, std::size_t& ended) {
    for (;;) {
      co_await runtime.sleep_for(3s);
      const auto reply = co_await call->receive(runtime.after(60s));
      if (!reply || !*reply) break;
    }
    ++ended;
  }
  /// The scheme of the second peer: sends all its parts to the first one, and goes on to its next round.
  static Task<Result<>> send_and_go(SlowReaders& test, RoundContext& round) {
    Runtime& runtime = round.runtime();
    const Deadline end = runtime.after(60s);
    auto call = co_await rpc::open_call(test.peers[1]->dht->host(), test.id(0),
                                        "test::DecentralizedAverager.rpc_aggregate_part", end);
    if (!call) co_return call.error();
    std::string id = round.group().id + round.group().view;
    int code = proto::PART_FOR_AVERAGING;
    const std::vector<std::size_t> tensors{kValues, 7};
    for (std::size_t left : tensors) {
      while (left > 0) {
        const std::size_t length = std::min(left, kPartValues);
        left -= length;
        const std::string bytes(length * sizeof(float), '\0');
        const Envelope part = envelope_part(code, id, bytes.size(), length, 0, 1);
        const ByteView pieces[] = {as_bytes(part.head), as_bytes(bytes), as_bytes(part.tail)};
        if (auto sent = co_await (*call)->send_while_moving(pieces, 30s); !sent) co_return sent;
        id.clear();
        code = proto::NO_CODE;
      }
    }
    if (auto sent = co_await (*call)->finish(end); !sent) co_return sent;
    test.readers.spawn(read_slowly(runtime, std::move(*call), test.ended), "slow reader");
    co_return ok();
  }

  std::size_t ended = 0;  // readers
  TaskGroup readers{swarm.runtime()};
};

TEST_F(SlowReaders, FillTheirShareOfTheMemoryWithTheAnswersOfOneRoundAtMost) {
  constexpr std::size_t kRounds = 4, kAnswers = kValues * sizeof(float);
  add(patient(PeerMode::node), kValues);
  auto options = patient(PeerMode::client);
  options.scheme = [this](RoundContext& round) { return send_and_go(*this, round); };
  add(options, kValues);
  const MemoryBudget& memory = peers[0]->dht->host().memory();
  const std::size_t before = memory.held();
  for (std::size_t i = 0; i < kRounds; ++i) {
    const auto results = step_all(same());
    for (const auto& result : results) ASSERT_TRUE(result) << result.error();
    EXPECT_TRUE(results[0]->lost_senders.empty());
    swarm.pass(1s);
    EXPECT_GT(memory.held(), before + kAnswers / 2) << i;
    EXPECT_LT(memory.held(), before + kAnswers / 2 * 3) << i;
  }
  swarm.pass(60s);
  EXPECT_EQ(ended, kRounds - 1) << "it may still read the answers of its last round";
  EXPECT_GT(memory.held(), before + kAnswers / 2);
  EXPECT_EQ(memory.cut_off(), 0u);
}

TEST_F(SlowReaders, AreLeftOutOfTheRoundWhereThereIsNoMemoryForTheirAnswers) {
  host_options.memory_budget = 4 << 20;
  add(patient(PeerMode::node), 2 * kValues);
  host_options.memory_budget = 0;
  add(patient(PeerMode::client), 2 * kValues);
  const p2p::Host& host = peers[0]->dht->host();
  const auto results = step_all(same({.timeout = 60s, .allow_retries = false}));
  ASSERT_TRUE(results[0]) << results[0].error();
  EXPECT_EQ(results[0]->lost_senders, std::vector{id(1)});
  EXPECT_TRUE(results[0]->liars.empty());
  EXPECT_GE(host.memory().highest(), host.memory().total() / 2);
  swarm.pass(30s);
  EXPECT_LT(host.memory().held(), host.memory().total() / 8) << "nothing is kept for a round that is over";
}

}  // namespace
}  // namespace cohive::averaging
