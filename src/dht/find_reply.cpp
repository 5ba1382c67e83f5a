#include "find_reply.hpp"

#include <bit>

#include "cohive/core/varint.hpp"

namespace cohive::dht {
namespace {

constexpr std::size_t kUsualNearest = 20;  // bucket_size, of hivemind too

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr std::uint32_t kEntriesField = 1000;
constexpr std::size_t kAround = 48;  // what a reply about one key has around its result, rounded up

void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  append_varint(out, field << 3 | kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}
std::size_t varint_size(std::uint64_t value) {
  std::size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}
std::size_t bytes_size(std::size_t size) {
  return 1 + varint_size(size) + size;
}  // fields below 16

/// One field at a time; unknown ones are for the caller to ignore.
class FieldReader {
 public:
  explicit FieldReader(ByteView bytes) : rest_(bytes) {}
  std::uint32_t field = 0;
  WireType type = kVarint;
  std::uint64_t number = 0;  ///< of varints and fixed64
  ByteView bytes;

  /// False at the end or when malformed.
  bool next() {
    if (rest_.empty() || broken_) return false;
    const std::uint64_t tag = varint();
    field = static_cast<std::uint32_t>(tag >> 3);
    type = static_cast<WireType>(tag & 7);
    if (broken_ || field == 0 || tag >> 32 != 0) return fail();
    switch (type) {
      case kVarint:
        number = varint();
        break;
      case kFixed64: {
        const ByteView raw = take(8);
        number = 0;
        for (std::size_t i = raw.size(); i-- > 0;) number = number << 8 | raw[i];
        break;
      }
      case kBytes: {
        const std::uint64_t size = varint();
        bytes = take(size);
        break;
      }
      case kFixed32:
        take(4);
        break;
      default:
        return fail();
    }
    return !broken_;
  }
  bool broken() const { return broken_; }

 private:
  bool fail() {
    broken_ = true;
    return false;
  }
  ByteView take(std::uint64_t size) {
    if (size > rest_.size()) {
      fail();
      return {};
    }
    const ByteView taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  std::uint64_t varint() {
    const Varint result = read_varint(rest_);
    if (result.status != VarintStatus::ok) {
      fail();
      return 0;
    }
    rest_ = rest_.subspan(result.size);
    return result.value;
  }
  ByteView rest_;
  bool broken_ = false;
};

bool read_result(ByteView bytes, std::size_t max_nearest, FindResultView& result) {
  FieldReader reader(bytes);
  std::vector<ByteView> nodes, peers;
  nodes.reserve(std::min(max_nearest, kUsualNearest));
  peers.reserve(std::min(max_nearest, kUsualNearest));
  while (reader.next()) {
    if (reader.field == 1 && reader.type == kVarint && reader.number <= 2)
      result.type = static_cast<FindType>(reader.number);
    if (reader.field == 2 && reader.type == kBytes) result.value = reader.bytes;
    if (reader.field == 3 && reader.type == kFixed64) result.expiration = std::bit_cast<double>(reader.number);
    if (reader.field == kEntriesField && reader.type == kVarint) result.entries = reader.number;
    if (reader.field == 4 && reader.type == kBytes && nodes.size() < max_nearest) nodes.push_back(reader.bytes);
    if (reader.field == 5 && reader.type == kBytes && peers.size() < max_nearest) peers.push_back(reader.bytes);
  }
  if (reader.broken()) return false;
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
  append_varint(bytes_, 2 << 3 | kBytes);
  append_varint(bytes_, size);
  if (type != FindType::not_found) {
    append_varint(bytes_, 1 << 3 | kVarint);
    append_varint(bytes_, static_cast<std::uint64_t>(type));
  }
  if (!value.empty()) put_bytes(bytes_, 2, value);
  if (expiration != 0) {
    append_varint(bytes_, 3 << 3 | kFixed64);
    const auto bits = std::bit_cast<std::uint64_t>(expiration);
    for (int shift = 0; shift < 64; shift += 8) bytes_.push_back(static_cast<char>(bits >> shift));
  }
  for (const auto& node : nearest) put_bytes(bytes_, 4, as_text(node.id.bytes));
  for (const auto& node : nearest) put_bytes(bytes_, 5, as_text(node.peer.bytes()));
  if (entries > 0) {
    append_varint(bytes_, kEntriesField << 3 | kVarint);
    append_varint(bytes_, entries);
  }
}

std::string FindReplyWriter::finish(std::string_view node_id) {
  std::string info;
  if (!node_id.empty()) put_bytes(info, 1, node_id);
  put_bytes(bytes_, 3, info);
  return std::move(bytes_);
}

std::optional<FindReplyView> read_find_reply(ByteView bytes, std::size_t max_results, std::size_t max_nearest) {
  FindReplyView reply;
  FieldReader reader(bytes);
  while (reader.next()) {
    if (reader.field == 2 && reader.type == kBytes) {
      if (reply.results.size() >= max_results || !read_result(reader.bytes, max_nearest, reply.results.emplace_back()))
        return std::nullopt;
    }
    if (reader.field == 3 && reader.type == kBytes) {
      FieldReader info(reader.bytes);
      while (info.next())
        if (info.field == 1 && info.type == kBytes) reply.node_id = info.bytes;
      if (info.broken()) return std::nullopt;
    }
  }
  if (reader.broken()) return std::nullopt;
  return reply;
}

}  // namespace cohive::dht
