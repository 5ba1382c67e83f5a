#include "dht/find_reply.hpp"

#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/proto/dht.pb.h"

namespace cohive::dht {
namespace {

std::vector<NodeEntry> some_nodes(SimRuntime& runtime, int count) {
  std::vector<NodeEntry> nodes;
  for (int i = 0; i < count; ++i) {
    Bytes key(36, static_cast<std::uint8_t>(i));
    nodes.push_back({DhtId::random(runtime), PeerId::of_public_key(key)});
  }
  return nodes;
}

TEST(FindReply, IsTheProtobufMessage) {
  SimRuntime runtime;
  for (int round = 0; round < 50; ++round) {
    FindReplyWriter writer;
    proto::FindResponse expected;
    for (int i = 0; i < round % 7; ++i) {
      const auto type = static_cast<FindType>(runtime.random()() % 3);
      const std::string value(runtime.random()() % 500, 'v');
      const double expiration = round % 2 ? runtime.wall_time() : 0;
      const auto nodes = some_nodes(runtime, static_cast<int>(runtime.random()() % 25));
      writer.add_result(type, value, expiration, nodes);
      auto* result = expected.add_results();
      result->set_type(static_cast<proto::ResultType>(type));
      result->set_value(value);
      result->set_expiration_time(expiration);
      for (const auto& node : nodes) {
        result->add_nearest_node_ids(node.id.binary());
        result->add_nearest_peer_ids(node.peer.binary());
      }
    }
    const std::string id = round % 3 ? DhtId::random(runtime).binary() : "";
    expected.mutable_peer()->set_node_id(id);
    const std::string bytes = writer.finish(id);
    EXPECT_EQ(bytes, expected.SerializeAsString());

    const auto reply = read_find_reply(as_bytes(bytes), 10, 100);
    ASSERT_TRUE(reply);
    EXPECT_EQ(as_text(reply->node_id), id);
    ASSERT_EQ(static_cast<int>(reply->results.size()), expected.results_size());
    for (int i = 0; i < expected.results_size(); ++i) {
      const auto& read = reply->results[static_cast<std::size_t>(i)];
      EXPECT_EQ(static_cast<int>(read.type), static_cast<int>(expected.results(i).type()));
      EXPECT_EQ(as_text(read.value), expected.results(i).value());
      EXPECT_EQ(read.expiration, expected.results(i).expiration_time());
      EXPECT_EQ(static_cast<int>(read.nearest.size()), expected.results(i).nearest_node_ids_size());
    }
    EXPECT_FALSE(read_find_reply(as_bytes(bytes), reply->results.size() - 1, 100) && !reply->results.empty());
  }
}

TEST(FindReply, ReadsOnlyAsManyNeighboursAsAllowedAndSkipsMalformedOnes) {
  SimRuntime runtime;
  proto::FindResponse reply;
  auto* result = reply.add_results();
  const auto nodes = some_nodes(runtime, 10);
  for (const auto& node : nodes) {
    result->add_nearest_node_ids(node.id.binary());
    result->add_nearest_peer_ids(node.peer.binary());
  }
  result->set_nearest_node_ids(1, std::string(19, 'x'));
  result->set_nearest_peer_ids(2, "no peer");
  const std::string bytes = reply.SerializeAsString();
  EXPECT_EQ(read_find_reply(as_bytes(bytes), 1, 100)->results[0].nearest.size(), 8u);
  EXPECT_EQ(read_find_reply(as_bytes(bytes), 1, 5)->results[0].nearest.size(), 3u);
  result->add_nearest_node_ids(nodes[0].id.binary());  // one list longer than the other
  EXPECT_EQ(read_find_reply(as_bytes(reply.SerializeAsString()), 1, 100)->results[0].nearest.size(), 8u);
}

TEST(FindReply, SurvivesAnyBytes) {
  SimRuntime runtime;
  FindReplyWriter writer;
  writer.add_result(FindType::regular, "value", 5.5, some_nodes(runtime, 3));
  const std::string good = writer.finish(std::string(20, 'n'));
  for (std::size_t size = 0; size < good.size(); ++size) {
    const std::string cut = good.substr(0, size);
    proto::FindResponse reference;
    EXPECT_EQ(read_find_reply(as_bytes(cut), 10, 10).has_value(), reference.ParseFromString(cut)) << size;
  }
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (int i = 0; i < 3; ++i) bytes[runtime.random()() % bytes.size()] = static_cast<char>(runtime.random()());
    proto::FindResponse reference;
    const bool valid = reference.ParseFromString(bytes);
    const auto reply = read_find_reply(as_bytes(bytes), 10, 10);
    if (valid && reply) EXPECT_EQ(static_cast<int>(reply->results.size()), reference.results_size());
    if (reply && !reply->results.empty()) EXPECT_LE(reply->results[0].value.size(), bytes.size());
  }
}

}  // namespace
}  // namespace cohive::dht
