#include "find_reply.hpp"

#include <bit>

#include "cohive/core/varint.hpp"
#include "core/detail/proto_fields.hpp"

namespace cohive::dht {
namespace {

constexpr std::size_t kUsualNearest = 20;  // bucket_size, of hivemind too

using wire_format::Field, wire_format::take_field;
using wire_format::kBytes, wire_format::kFixed64, wire_format::kVarint;
using wire_format::put_bytes, wire_format::put_key, wire_format::put_varint;

constexpr std::uint32_t kEntriesField = 1000;
constexpr std::size_t kAround = 48;  // what a reply about one key has around its result, rounded up

std::size_t varint_size(std::uint64_t value) {
  std::size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}
std::size_t bytes_size(std::size_t size) {
  return 1 + varint_size(size) + size;
}  // fields below 16

/// False when malformed.
bool read_result(ByteView bytes, std::size_t max_nearest, FindResultView& result) {
  std::vector<ByteView> nodes, peers;
  nodes.reserve(std::min(max_nearest, kUsualNearest));
  peers.reserve(std::min(max_nearest, kUsualNearest));
  for (Field field; !bytes.empty();) {
    if (!take_field(bytes, field)) return false;
    if (field.number == 1 && field.type == kVarint && field.value <= 2)
      result.type = static_cast<FindType>(field.value);
    if (field.number == 2 && field.type == kBytes) result.value = field.bytes;
    if (field.number == 3 && field.type == kFixed64) result.expiration = std::bit_cast<double>(field.value);
    if (field.number == kEntriesField && field.type == kVarint) result.entries = field.value;
    if (field.number == 4 && field.type == kBytes && nodes.size() < max_nearest) nodes.push_back(field.bytes);
    if (field.number == 5 && field.type == kBytes && peers.size() < max_nearest) peers.push_back(field.bytes);
  }
  result.nearest.reserve(std::min(nodes.size(), peers.size()));
  for (std::size_t i = 0; i < std::min(nodes.size(), peers.size()); ++i) {
    const auto id = DhtId::from_bytes(nodes[i]);
    const auto peer = PeerId::from_bytes(peers[i]);
    if (id && peer) result.nearest.push_back({*id, *peer});
  }
  return true;
}

}  // namespace

void FindReplyWriter::add_result(FindType type, std::string_view value, double expiration,
                                 const std::vector<NodeEntry>& nearest, std::size_t entries) {
  std::size_t size = 0;
  if (type != FindType::not_found) size += 2;
  if (!value.empty()) size += bytes_size(value.size());
  if (expiration != 0) size += 9;
  if (entries > 0) size += varint_size(kEntriesField << 3) + varint_size(entries);
  for (const auto& node : nearest) size += bytes_size(DhtId::kSize) + bytes_size(node.peer.bytes().size());
  if (bytes_.empty()) bytes_.reserve(size + kAround);
  put_key(bytes_, 2, kBytes);
  append_varint(bytes_, size);
  put_varint(bytes_, 1, static_cast<std::uint64_t>(type));
  put_bytes(bytes_, 2, value);
  if (expiration != 0) {
    put_key(bytes_, 3, kFixed64);
    const auto bits = std::bit_cast<std::uint64_t>(expiration);
    for (int shift = 0; shift < 64; shift += 8) bytes_.push_back(static_cast<char>(bits >> shift));
  }
  for (const auto& node : nearest) put_bytes(bytes_, 4, as_text(node.id.bytes));
  for (const auto& node : nearest) put_bytes(bytes_, 5, as_text(node.peer.bytes()));
  put_varint(bytes_, kEntriesField, entries);
}

std::string FindReplyWriter::finish(std::string_view node_id) {
  std::string info;
  put_bytes(info, 1, node_id);
  put_key(bytes_, 3, kBytes);  // also where it is empty, as hivemind's peers write it
  append_varint(bytes_, info.size());
  bytes_ += info;
  return std::move(bytes_);
}

std::optional<FindReplyView> read_find_reply(ByteView bytes, std::size_t max_results, std::size_t max_nearest) {
  FindReplyView reply;
  for (Field field; !bytes.empty();) {
    if (!take_field(bytes, field)) return std::nullopt;
    if (field.number == 2 && field.type == kBytes) {
      if (reply.results.size() >= max_results || !read_result(field.bytes, max_nearest, reply.results.emplace_back()))
        return std::nullopt;
    }
    if (field.number != 3 || field.type != kBytes) continue;
    ByteView info = field.bytes;
    for (Field of_node; !info.empty();) {
      if (!take_field(info, of_node)) return std::nullopt;
      if (of_node.number == 1 && of_node.type == kBytes) reply.node_id = of_node.bytes;
    }
  }
  return reply;
}

}  // namespace cohive::dht
