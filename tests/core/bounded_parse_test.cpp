// What a peer's protobuf may hold, and what it may take in memory.
#include "core/detail/bounded_parse.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>

#include "cohive/core/msgpack.hpp"
#include "cohive/proto/averaging.pb.h"
#include "cohive/proto/dht.pb.h"
#include "cohive/proto/p2p.pb.h"
#include "core/detail/proto_fields.hpp"
#include "support/memory_peak.hpp"

namespace cohive {
namespace {

constexpr std::size_t kFrame = 4 * 1024 * 1024;
constexpr std::size_t kConstant = 4 * 1024 * 1024;  // beside 16 for each byte of input

std::string repeated(std::string_view piece, std::size_t bytes) {
  std::string result;
  for (result.reserve(bytes); result.size() + piece.size() <= bytes;) result += piece;
  return result;
}

TEST(BoundedParse, AMessageOfTheAllowedSizeIsReadAsItIs) {
  proto::FindRequest request;
  for (int i = 0; i < 1024; ++i) request.add_keys(std::string(20, static_cast<char>(i)));
  request.mutable_peer()->set_node_id("node");
  const std::string bytes = request.SerializeAsString();
  proto::FindRequest read;
  ASSERT_TRUE(parse_bounded(read, as_bytes(bytes), 1026));
  EXPECT_EQ(read.SerializeAsString(), bytes);
  EXPECT_FALSE(parse_bounded(read, as_bytes(bytes), 1025)) << "1,024 keys, and a peer with its node id";
}

TEST(BoundedParse, FieldsThatNobodyKnowsCountToo) {
  proto::PingRequest request;
  EXPECT_TRUE(parse_bounded(request, as_bytes(repeated("\x78\x01", 64))));
  EXPECT_FALSE(parse_bounded(request, as_bytes(repeated("\x78\x01", 1024))));
}

/// The messages of proto/*.proto, nested ones as Outer.Inner, and the types of their fields by number.
std::map<std::string, std::map<int, std::string>> declared_messages() {
  static const std::regex opened(R"(^\s*(message|enum|oneof)\s+(\w+)\s*\{(\})?)"), closed(R"(^\s*\})"),
      declared(R"(^\s*(?:optional |required |repeated )?(\w+)\s+\w+\s*=\s*(\d+)\s*;)");
  std::map<std::string, std::map<int, std::string>> messages;
  for (const auto& file : std::filesystem::directory_iterator(COHIVE_TEST_DATA "/../../proto")) {
    std::ifstream lines(file.path());
    std::vector<std::string> path;  // "" for what is no message
    std::smatch part;
    for (std::string line; std::getline(lines, line);) {
      const auto outer = std::find_if(path.rbegin(), path.rend(), [](auto& name) { return !name.empty(); });
      if (std::regex_search(line, part, opened)) {
        std::string name = part[1] == "message" ? part[2].str() : "";
        if (!name.empty() && outer != path.rend()) name = *outer + "." + name;
        if (!name.empty()) messages[name];
        if (!part[3].matched) path.push_back(name);
      } else if (std::regex_search(line, closed) && !path.empty()) {
        path.pop_back();
      } else if (std::regex_search(line, part, declared) && outer != path.rend()) {
        messages[*outer][std::stoi(part[2])] = part[1];
      }
    }
  }
  return messages;
}

TEST(BoundedParse, FieldsAreCountedInAllMessagesInMessages) {
  const auto messages = declared_messages();
  const auto in_field = [](int number, const std::string& content) {
    std::string bytes;
    wire_format::put_bytes(bytes, static_cast<std::uint32_t>(number), content);
    return bytes;
  };
  std::size_t nested = 0;
  const std::function<void(const std::string&, const std::string&, std::size_t,
                           const std::function<std::string(std::string)>&)>
      look = [&](const std::string& top, const std::string& type, std::size_t depth, const auto& around) {
        for (const auto& [number, field] : messages.at(type)) {
          std::string scope = type + ".", name = scope + field;  // looked for from the inside outwards
          while (!messages.contains(name) && !scope.empty()) {
            scope.erase(scope.find_last_of('.', scope.size() - 2) + 1);
            name = scope + field;
          }
          const auto here = [&, number = number](std::string content) { return around(in_field(number, content)); };
          const std::string bytes = here("\x78\x01");  // one field, in a message; else bytes
          EXPECT_TRUE(holds_at_most(as_bytes(bytes), top, depth + 1));
          EXPECT_EQ(holds_at_most(as_bytes(bytes), top, depth), !messages.contains(name))
              << top << " ... " << type << " " << number;
          if (!messages.contains(name)) continue;
          ++nested;
          look(top, name, depth + 1, here);
        }
      };
  for (const auto& message : messages)
    look(message.first, message.first, 1, [](std::string content) { return content; });
  EXPECT_GE(nested, 40u);
}

TEST(BoundedParse, WhatIsCutOffOrNestedTooDeeplyIsRefused) {
  proto::PingRequest request;
  EXPECT_FALSE(parse_bounded(request, as_bytes(std::string_view("\x12\x05"))));
  EXPECT_FALSE(parse_bounded(request, as_bytes(std::string_view("\x0b\x0c")))) << "a group";
  EXPECT_TRUE(parse_bounded(request, {}));
}

TEST(BoundedParse, NoFrameTakesManyTimesItsSize) {
  const auto peak_of = [](google::protobuf::MessageLite&& message, std::string_view piece, std::size_t fields) {
    const std::string bytes = repeated(piece, kFrame);
    MemoryPeak peak;
    EXPECT_FALSE(parse_bounded(message, as_bytes(bytes), fields));
    return peak.bytes();
  };
  using namespace std::string_view_literals;
  const std::pair<const char*, std::size_t> peaks[] = {
      {"a find of empty keys", peak_of(proto::FindRequest(), "\x12\x00"sv, 1088)},
      {"a store of nils", peak_of(proto::StoreRequest(), "\x12\x00\x1a\x00\x22\x00"sv, 5184)},
      {"unknown fields", peak_of(proto::FindRequest(), "\x78\x01"sv, 1088)},
      {"unknown fields of a peer", peak_of(proto::FindRequest(), "\x1a\x02\x78\x01"sv, 1088)},
      {"neighbours", peak_of(proto::KadMessage(), "\x42\x00"sv, 64)},
      {"members of a group", peak_of(proto::MessageFromLeader(), "\x22\x00"sv, 2112)},
  };
  for (const auto& [what, bytes] : peaks) EXPECT_LE(bytes, kConstant) << what;
}

TEST(BoundedDecode, ManySmallValuesAreRefused) {
  for (const std::size_t count : {std::size_t{1} << 20, std::size_t{1} << 24}) {
    std::string list("\xdd", 1);
    for (int shift = 24; shift >= 0; shift -= 8) list.push_back(static_cast<char>(count >> shift));
    list.append(count, '\xc0');
    MemoryPeak peak;
    EXPECT_FALSE(msgpack::decode(as_bytes(list)));
    EXPECT_LE(peak.bytes(), 16 * list.size() + kConstant);
  }
  msgpack::Array numbers;
  for (int i = 0; i < 60'000; ++i) numbers.items.push_back(i % 100);
  EXPECT_TRUE(msgpack::decode(as_bytes(msgpack::encode(numbers)))) << "a list that a user may store";
}

}  // namespace
}  // namespace cohive
