// Values that all members of a group must compute alike. Source: docs/wire/hivemind.md, appendix B.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "averaging/groups/group_bits.hpp"
#include "averaging/rounds/load_balancer.hpp"
#include "averaging/rounds/partition.hpp"
#include "averaging/wire.hpp"
#include "cohive/averaging/tensor_parts.hpp"
#include "cohive/proto/averaging.pb.h"
#include "support/memory_peak.hpp"

namespace cohive::averaging {
namespace {

std::string hex(std::string_view bytes) {
  return to_hex(as_bytes(bytes));
}
Bytes counting(std::size_t size) {
  Bytes bytes(size);
  std::iota(bytes.begin(), bytes.end(), 0);
  return bytes;
}
TensorInfo tensor(codec::Shape shape, codec::DType dtype = codec::DType::float32, bool grad = false) {
  return {std::move(shape), dtype, grad};
}
std::string hash_of(const std::vector<TensorInfo>& tensors) {
  return hex(schema_hash(tensors));
}

TEST(SchemaHash, EqualsHivemind) {
  EXPECT_EQ(hash_of({tensor({2, 3}), tensor({5}, codec::DType::float16)}), "2401aa0ef7f6a429b3d10f6cffe7fb7f93438e83");
  EXPECT_EQ(hash_of({tensor({1, 5}), tensor({1})}), "3d41bd9dc8f8fbdb8646cda3fb2c159c60a3d715");
  EXPECT_EQ(hash_of({tensor({})}), "ce72eceaf65845f17eb0cb160cfc770d7c25553e");
  EXPECT_EQ(hash_of({tensor({3}, codec::DType::float32, true)}), "3dece5573eabb74596efb7103cf2d0589d16ddfc");
}

TEST(Gather, EqualsHivemind) {
  EXPECT_EQ(hex(encode_gathered({.peer = {}})), "93c000c401c0");
  EXPECT_EQ(hex(encode_gathered({.peer = {}, .data = 5})), "93c000c40105");
  EXPECT_FALSE(decode_gathered({}, "\x93\xc0\x03\xc4\x01\xc0"));
}

TEST(Gather, HoldsABoundedNumberOfValuesAndBytes) {
  const auto gathered = [](const std::string& data) {
    return msgpack::encode(msgpack::Array{{nullptr, 0, msgpack::Bin{data}}});
  };
  const auto list_of = [](std::uint32_t count) {
    std::string list("\xdd", 1);
    for (int shift = 24; shift >= 0; shift -= 8) list.push_back(static_cast<char>(count >> shift));
    return list.append(count, '\xc0');
  };
  EXPECT_TRUE(decode_gathered({}, gathered(list_of(4000))));
  for (const std::string& much : {gathered(list_of(5000)), gathered(list_of(1 << 20)), list_of(1 << 20),
                                  gathered(msgpack::encode(std::string(1 << 20, 'x')))}) {
    MemoryPeak peak;
    EXPECT_FALSE(decode_gathered({}, much));
    EXPECT_LE(peak.bytes(), 1 << 20);
  }
  std::size_t left = 3;
  EXPECT_TRUE(decode_gathered({}, gathered(list_of(2)), &left));
  EXPECT_EQ(left, 0u) << "a group has a number of values in all";
  EXPECT_FALSE(decode_gathered({}, gathered(list_of(1)), &left));
}

TEST(Gather, ABandwidthThatNoLinkHasIsClipped) {
  const auto bandwidth_of = [](double claimed) {
    return decode_gathered({}, msgpack::encode(msgpack::Array{{claimed, 0, msgpack::Bin{"\xc0"}}}));
  };
  EXPECT_EQ(*bandwidth_of(1e9)->bandwidth, 1e9);
  EXPECT_EQ(*bandwidth_of(1e18)->bandwidth, kMaxBandwidth);
  EXPECT_EQ(*bandwidth_of(1e308)->bandwidth, kMaxBandwidth);
  EXPECT_FALSE(bandwidth_of(-1));
  EXPECT_FALSE(bandwidth_of(NAN));
}

TEST(Partition, ACappedMemberGetsTwiceAnEqualShareAtMost) {
  const auto shares = [](std::vector<double> bandwidths, std::size_t clients) {
    std::vector<Member> members;
    for (double bandwidth : bandwidths) members.push_back({.peer = {}, .bandwidth = bandwidth});
    for (std::size_t i = 0; i < clients; ++i) members.push_back({.peer = {}, .mode = PeerMode::client});
    return capped_fractions(1'000'000, members).value();
  };
  EXPECT_EQ(
      peer_fractions(1'000'000,
                     std::vector<Member>{{.bandwidth = 1e12}, {.bandwidth = 1}, {.bandwidth = 1}, {.bandwidth = 1}})
          .value()[0],
      1'000'000u);
  for (const auto& result : {shares({1e12, 1, 1, 1, 1, 1, 1, 1}, 0), shares({1e12, 1e12, 0, 0, 1, 1, 1, 1}, 0),
                             shares({1e12, 1, 1, 1}, 4), shares({1, 1, 1, 1, 1}, 3)}) {
    EXPECT_EQ(std::accumulate(result.begin(), result.end(), std::uint64_t{0}), 1'000'000u);
    EXPECT_LE(std::ranges::max(result), 250'000u);
  }
  EXPECT_EQ(shares({1, 1, 1, 1}, 0), (std::vector<std::uint64_t>(4, 250'000))) << "equal members keep equal shares";
  EXPECT_EQ(shares({5}, 7)[0], 1'000'000u) << "the only one that can";
}

TEST(GroupBits, DrawAsCpythonDoes) {
  PythonRandom random(counting(20));
  for (std::uint32_t expected : {4242546393u, 2533012690u, 2317261166u, 309831577u, 1181066088u})
    EXPECT_EQ(random.next(), expected);
  EXPECT_EQ(PythonRandom(counting(20)).sample(16, 5), (std::vector<std::uint32_t>{2, 4, 8, 3, 7}));
  EXPECT_EQ(PythonRandom(counting(20)).sample(256, 6), (std::vector<std::uint32_t>{36, 140, 111, 242, 69, 220}));
  EXPECT_EQ(PythonRandom(Bytes(20, 0)).sample(256, 6), (std::vector<std::uint32_t>{99, 214, 158, 54, 25, 249}));
  EXPECT_EQ(PythonRandom(Bytes(20, 0)).sample(16, 16),
            (std::vector<std::uint32_t>{6, 8, 14, 15, 10, 4, 9, 1, 0, 3, 7, 13, 2, 5, 12, 11}));
  EXPECT_EQ(next_group_bits("0110", counting(20), 2, 5, 16), "1000");
  EXPECT_EQ(next_group_bits("", counting(20), 2, 5, 16), "");
}

TEST(Partition, EqualsHivemind) {
  const std::vector<PartedTensor> tensors{{300'000, 4}, {7, 4}, {262'144, 4}, {1, 4}, {0, 4}, {200'000, 4}};
  const auto fractions = divide(762'152, {1, 1, 1});
  EXPECT_EQ(fractions, (std::vector<std::uint64_t>{254051, 254051, 254050}));
  const auto lengths = [&](double bytes_per_value, std::size_t peers) {
    auto copy = tensors;
    for (auto& t : copy) t.bytes_per_value = bytes_per_value;
    std::vector<std::vector<std::size_t>> result(peers);
    for (const Part& part : cut_into_parts(copy, 1 << 19, divide(762'152, std::vector<double>(peers, 1))))
      result[part.owner].push_back(part.length);
    return result;
  };
  using L = std::vector<std::vector<std::size_t>>;
  EXPECT_EQ(lengths(4, 3), (L{{131072, 131072}, {37856, 7, 131072, 131072}, {1, 0, 131072, 68928}}));
  EXPECT_EQ(lengths(2, 3), (L{{262144}, {37856, 7, 262144}, {1, 0, 200000}}));
  EXPECT_EQ(lengths(1, 3), (L{{300000}, {7, 262144}, {1, 0, 200000}}));
  EXPECT_EQ(lengths(4, 4), (L{{131072}, {131072, 37856, 7, 131072}, {131072, 1, 0}, {131072, 68928}}));
  EXPECT_EQ(lengths(2, 2), (L{{262144, 37856, 7}, {262144, 1, 0, 200000}}));
  EXPECT_EQ(divide(10, {1, 1, 1}), (std::vector<std::uint64_t>{4, 3, 3}));
}

TEST(Partition, TensorsWithoutValuesAreOnePartEach) {
  const auto parts = cut_into_parts({{0, 4}, {0, 2}}, 1 << 19, divide(0, {1, 1}));
  ASSERT_EQ(parts.size(), 2u);
  for (const Part& part : parts) {
    EXPECT_EQ(part.length, 0u);
    EXPECT_EQ(part.owner, 0u);
  }
}

TEST(LoadBalancer, EqualsHivemindOnItsOwnTestCases) {
  const auto shares = [](std::uint64_t total, std::vector<std::optional<double>> b, std::uint64_t min) {
    return divide(total, balance_load(b, total, min));
  };
  using F = std::vector<std::uint64_t>;
  EXPECT_EQ(shares(60, {0.55, 0.44, 0.40}, 10), (F{41, 19, 0}));
  EXPECT_EQ(shares(60, {0.32, 0.55, 0.44}, 10), (F{0, 40, 20}));
  EXPECT_EQ(shares(2, {0.55, 0.20, 0.44}, 10), (F{1, 0, 1}));
  EXPECT_EQ(shares(1, {0.55, 0.20, 0.44}, 10), (F{1, 0, 0}));
  EXPECT_EQ(shares(1000, {0.25, 0.5, 0.5, 1.0}, 0), (F{0, 242, 242, 516}));
}

TEST(LoadBalancer, GivesUpForARoundThatIsNotWaitedForAnyMore) {
  std::vector<std::optional<double>> forged;
  for (int i = 0; i < 200; ++i) forged.push_back(1.0 + i % 7);
  std::stop_source given_up;
  given_up.request_stop();
  const auto scores = balance_load(forged, 1'000'000, 0, given_up.get_token());
  EXPECT_EQ(scores, std::vector<double>(forged.size(), 1.0)) << "nothing was reckoned";
  EXPECT_NE(balance_load(forged, 1'000'000), scores);
}

TEST(LoadBalancer, ALargeGroupIsDividedInReasonableTime) {
  std::vector<std::optional<double>> bandwidths;
  for (int i = 0; i < 200; ++i) bandwidths.push_back(1.0 + i % 7);
  const auto scores = balance_load(bandwidths, 1'000'000);
  EXPECT_GT(scores[6], scores[0]) << "the faster gets more";
  EXPECT_EQ(scores[6], scores[13]);
  std::uint64_t sum = 0;
  for (auto share : divide(1'000'000, scores)) sum += share;
  EXPECT_EQ(sum, 1'000'000u);
}

TEST(Wire, FieldsOfAnotherTypeAreRefused) {
  const std::string tensor = "\x0a\x04\x01\x02\x03\x04";  // field 1, four bytes
  const auto part = [](std::string bytes) { return parse_part(as_bytes(bytes)).has_value(); };
  const auto with = [&](std::string inner) {
    return part("\x22" + std::string(1, static_cast<char>(inner.size())) + inner);
  };
  EXPECT_TRUE(with(tensor));
  EXPECT_FALSE(part(std::string("\x0a\x01\x04", 3))) << "code as bytes";
  EXPECT_FALSE(part(std::string("\x10\x04", 2))) << "group id as a number";
  EXPECT_FALSE(part(std::string("\x20\x04", 2))) << "tensor as a number";
  EXPECT_FALSE(part(std::string("\x28\x01", 2))) << "weight as a number";
  EXPECT_FALSE(with(std::string("\x08\x04", 2))) << "buffer as a number";
  EXPECT_FALSE(with(tensor + std::string("\x08\x04", 2))) << "and not with the bytes of the field before";
  EXPECT_FALSE(with(std::string("\x20\x04", 2))) << "dtype as a number";
  EXPECT_FALSE(with(std::string("\x2a\x01\x02", 3))) << "compression as bytes";
  EXPECT_FALSE(with(std::string("\x15\0\0\0\0", 5))) << "size as four bytes";
  EXPECT_FALSE(with(std::string("\x10\xff\xff\xff\xff\xff\x01", 7))) << "a size beyond 32 bits";
  EXPECT_TRUE(part(std::string("\x50\x05", 2))) << "an unknown field is passed over";
  EXPECT_FALSE(part(std::string("\x00\x05", 2))) << "there is no field 0";
  EXPECT_FALSE(parse_download(as_bytes(std::string("\x08\x05", 2)))) << "metadata as a number";
  EXPECT_FALSE(parse_download(as_bytes(std::string("\x10\x05", 2)))) << "tensor as a number";
}

TEST(Wire, MessagesOfAStateInPiecesComeBackAsTheyWere) {
  const StateRoot root(kRootSize, 'r');
  EXPECT_EQ(parse_manifest_request(as_bytes(encode_manifest_request({}))).value(), "");
  EXPECT_EQ(parse_manifest_request(as_bytes(encode_manifest_request(root))).value(), root);
  EXPECT_FALSE(parse_manifest_request(as_bytes(encode_manifest_request("short"))));
  const auto head = parse_manifest_head(as_bytes(encode_manifest_head({root, 77}))).value();
  EXPECT_EQ(head.root, root);
  EXPECT_EQ(head.size, 77u);
  EXPECT_FALSE(parse_manifest_head(from_hex("0801"))) << "a root as a number";
  EXPECT_EQ(parse_piece(as_bytes(encode_piece_request(300))).value().index, 300u);
  const std::string message = piece_head(5, 3) + "abc";
  const auto piece = parse_piece(as_bytes(message)).value();
  EXPECT_EQ(piece.index, 5u);
  EXPECT_EQ(as_text(piece.data), "abc");
  EXPECT_FALSE(parse_piece(as_bytes(message.substr(0, message.size() - 1)))) << "cut off";
  EXPECT_FALSE(parse_piece(from_hex("1003"))) << "bytes as a number";
}

TEST(Wire, EqualsProtobufBitForBit) {
  const Slice one = Slice::copy_of(from_hex("0000803f"));
  const std::string group(20, '\x02');
  auto part = envelope_part(4, group, 4, 1, 0, 2.0);
  EXPECT_EQ(
      hex(part.head + to_string(one.view()) + part.tail),
      "08041214020202020202020202020202020202020202020222120a040000803f1201012207666c6f61743332290000000000000040");
  TensorView view;
  view.buffer = one.view();
  view.shape = {1};
  view.dtype = "float32";
  view.chunks = 1;
  auto download = envelope_download(
      from_hex("81a967726f75705f6b6579a0").empty() ? "" : std::string("\x81\xa9group_key\xa0"), view, true);
  EXPECT_EQ(hex(download.head + to_string(one.view()) + download.tail),
            "0a0c81a967726f75705f6b6579a012140a040000803f1201012207666c6f617433323001");
  proto::AveragingData message;
  ASSERT_TRUE(message.ParseFromString(part.head + to_string(one.view()) + part.tail));
  EXPECT_EQ(message.weight(), 2.0);
  const auto parsed = parse_part(as_bytes(message.SerializeAsString())).value();
  EXPECT_EQ(parsed.tensor->dtype, "float32");
  EXPECT_EQ(parsed.weight, 2.0);
  EXPECT_FALSE(parse_part(from_hex("22ff")));
}

}  // namespace
}  // namespace cohive::averaging
