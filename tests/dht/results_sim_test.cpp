// What a store and a get say when they fail, and that they end in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cohive/core/errors.hpp"
#include "cohive/dht/errors.hpp"
#include "dht_swarm.hpp"

namespace cohive::dht {
namespace {

class DhtResults : public DhtSwarm {
 protected:
  Deadline after(Duration time) { return swarm.runtime().after(time); }
  /// All nodes but the last vanish: their connections stall.
  void leave_alone() {
    for (std::size_t i = 0; i + 1 < nodes.size(); ++i) swarm.fabric().crash(ip_of(i));
  }
};

TEST_F(DhtResults, AGetTellsThatThereIsNoRecord) {
  add_many(8);
  EXPECT_EQ(get(*nodes[3], "missing", true).error(), Errc::not_found);
  EXPECT_EQ(get(*nodes[3], "missing").error(), Errc::not_found);
  ASSERT_TRUE(store(*nodes[1], "short-lived", 1, in(5)));
  swarm.pass(10s);
  EXPECT_EQ(get(*nodes[3], "short-lived", true).error(), Errc::not_found);
}

TEST_F(DhtResults, TheFirstOfASwarmHasAllRecordsThatThereAre) {
  Dht& first = add();
  EXPECT_EQ(get(first, "missing", true).error(), Errc::not_found);
  EXPECT_TRUE(store(first, "key", 1, in(60)));
  EXPECT_EQ(*get(first, "key", true)->value(), msgpack::Value(1));
}

TEST_F(DhtResults, NobodyReachableIsNotNothingFound) {
  add_many(4);
  Dht& client = add({.client_mode = true});
  leave_alone();
  EXPECT_EQ(get(client, "key", true).error(), Errc::unreachable);
  EXPECT_EQ(store(client, "key", 1, in(600)).error(), Errc::unreachable);
  EXPECT_EQ(get(client, "key", true).error(), Errc::unreachable) << "also once it has given them up";
}

TEST_F(DhtResults, AnOlderRecordIsRefused) {
  add_many(8);
  ASSERT_TRUE(store(*nodes[1], "key", "new", in(600)));
  EXPECT_EQ(store(*nodes[2], "key", "old", in(300)).error(), Errc::record_refused);
  ASSERT_TRUE(store(*nodes[1], "dictionary", "a", 1, in(600)));
  EXPECT_EQ(store(*nodes[2], "dictionary", "a", 2, in(300)).error(), Errc::record_refused);
  EXPECT_TRUE(store(*nodes[2], "dictionary", "b", 2, in(300)));
}

struct OnlyEven final : RecordValidator {
  bool validate(const Record& record) const override {
    const auto value = msgpack::decode(as_bytes(record.value));
    const auto number = value ? value->as_number() : std::nullopt;
    return number && static_cast<int>(*number) % 2 == 0;
  }
};

TEST_F(DhtResults, ARecordThatAValidatorRefusesIsToldApart) {
  add_many(6);
  for (auto& node : nodes) node->add_validator(std::make_shared<OnlyEven>());
  EXPECT_TRUE(store(*nodes[1], "key", 2, in(600)));
  EXPECT_EQ(store(*nodes[1], "key", 3, in(900)).error(), Errc::record_invalid);
  EXPECT_EQ(store(*nodes[1], "key", 4, in(300)).error(), Errc::record_refused);
}

TEST_F(DhtResults, WhatCannotBeStoredIsNotSent) {
  add_many(3, {.max_value_bytes = 100});
  const double before = served("store");
  EXPECT_EQ(store(*nodes[0], "key", 1, in(-1)).error(), cohive::Errc::invalid_argument);
  EXPECT_EQ(store(*nodes[0], "key", 1, std::numeric_limits<double>::infinity()).error(),
            cohive::Errc::invalid_argument);
  EXPECT_EQ(store(*nodes[0], "key", msgpack::Array{}, 1, in(60)).error(), cohive::Errc::invalid_argument);
  EXPECT_EQ(store(*nodes[0], "key", std::string(101, 'x'), in(60)).error(), cohive::Errc::limit_exceeded);
  EXPECT_EQ(store(*nodes[0], "key", std::string(5000, 's'), 1, in(60)).error(), cohive::Errc::limit_exceeded);
  EXPECT_EQ(served("store"), before);
}

TEST_F(DhtResults, TheSignatureOfAValueCountsForItsSize) {
  add_many(3, {.max_value_bytes = 500});
  const auto owner = std::make_shared<RsaSignatureValidator>();
  nodes[0]->add_validator(owner);
  const msgpack::Value subkey = msgpack::Bin{owner->ownership_marker()};
  EXPECT_TRUE(store(*nodes[0], "key", subkey, std::string(100, 'x'), in(60)));
  const double before = served("store");
  EXPECT_EQ(store(*nodes[0], "key", subkey, std::string(200, 'x'), in(90)).error(), cohive::Errc::limit_exceeded);
  EXPECT_EQ(served("store"), before);
  EXPECT_TRUE(store(*nodes[0], "key", "nobody's", std::string(200, 'x'), in(90)));
}

TEST_F(DhtResults, EveryItemOfABulkStoreHasItsOwnResult) {
  add_many(6);
  ASSERT_TRUE(store(*nodes[1], "held", 1, in(600)));
  const auto stored = swarm.run(nodes[2]->store_many({{"fresh", std::nullopt, 1, in(60)},
                                                      {"held", std::nullopt, 2, in(300)},
                                                      {"late", std::nullopt, 3, in(-5)},
                                                      {"fresh", "subkey", 4, in(60)}}));
  EXPECT_TRUE(stored[0]);
  EXPECT_EQ(stored[1].error(), Errc::record_refused);
  EXPECT_EQ(stored[2].error(), cohive::Errc::invalid_argument);
  EXPECT_EQ(stored[3].error(), Errc::record_refused) << "a dictionary does not replace a value that lasts as long";
}

// Each call waits three seconds for a node that is silent; the operations must not.
TEST_F(DhtResults, OperationsEndAtTheirDeadline) {
  add_many(8);
  Dht& client = add({.client_mode = true});
  leave_alone();
  const auto timed = [&](auto task) {
    const TimePoint start = swarm.runtime().now();
    const auto code = swarm.run(std::move(task)).error().code();
    EXPECT_EQ(swarm.runtime().now() - start, 500ms);
    return code;
  };
  EXPECT_EQ(timed(client.get("key", true, after(500ms))), cohive::Errc::timeout);
  EXPECT_EQ(timed(client.get("key", false, after(500ms))), cohive::Errc::timeout);
  EXPECT_EQ(timed(client.store("key", 1, in(600), after(500ms))), cohive::Errc::timeout);
  EXPECT_EQ(timed(client.ping(swarm.host(0).id(), after(500ms))), cohive::Errc::timeout);
  EXPECT_EQ(timed(client.ask(swarm.host(0).id(), {DhtId::of("key")}, after(500ms))), cohive::Errc::timeout);
}

TEST_F(DhtResults, WhatWasFoundByTheDeadlineCounts) {
  add_many(12, {.cache_locally = false, .cache_nearest = 0, .cache_on_store = false});
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(600)));
  Dht* reader = nullptr;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i]->storage_size() > 0 || i == 0) continue;
    if (!reader) {
      reader = nodes[i].get();
    } else {
      swarm.fabric().crash(ip_of(i));  // silent nodes in the beam keep the search from its end
    }
  }
  ASSERT_TRUE(reader);
  const auto found = swarm.run(reader->get("key", true, after(2s)));
  ASSERT_TRUE(found) << found.error();
  EXPECT_EQ(*found->value(), msgpack::Value(1));
}

TEST_F(DhtResults, AnImpatientGetDoesNotEndTheSearchThatOthersShare) {
  add_many(16, {.cache_locally = false, .cache_nearest = 0});
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(600)));
  Dht* reader = nullptr;
  for (auto& node : nodes)
    if (node->storage_size() == 0 && !reader) reader = node.get();
  auto impatient = swarm.runtime().submit([&] { return reader->get("key", false, after(1ms)); });
  auto patient = swarm.runtime().submit([&] { return reader->get("key"); });
  swarm.pass(30s);
  EXPECT_EQ(impatient.get().error(), cohive::Errc::timeout);
  EXPECT_TRUE(patient.get());
}

TEST_F(DhtResults, WithoutADeadlineAnOperationStillEnds) {
  add_many(6);
  Dht& client = add({.client_mode = true, .operation_timeout = 1s});
  leave_alone();
  EXPECT_EQ(get(client, "key", true).error(), cohive::Errc::timeout);
  EXPECT_EQ(store(client, "key", 1, in(600)).error(), cohive::Errc::timeout);
}

}  // namespace
}  // namespace cohive::dht
