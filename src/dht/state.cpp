// The state file: magic, then pieces: length (4 bytes, big-endian) | SHA-256 of the payload | payload.
//   first piece:  msgpack map {peer, node_id, peers}
//   others:       msgpack list of records
//   last piece:   empty, so that a file that was cut short is noticed
// Version 1 was one piece without a length, a map that had the records, too: files of earlier versions are read.
#include "cohive/dht/state.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/msgpack.hpp"
#include "cohive/core/try.hpp"

namespace cohive::dht {
namespace {

constexpr std::string_view kMagic = "cohive dht state 2\n", kMagic1 = "cohive dht state 1\n";
constexpr std::size_t kLengthBytes = 4, kDigestBytes = sizeof(crypto::Sha256Digest);
constexpr std::size_t kMaxAddresses = 32;  // of one peer

Error file_error(cohive::Errc code, const std::filesystem::path& path, std::string_view what) {
  return Error(code, "state file " + path.string() + ": " + std::string(what));
}
Error file_error(const std::filesystem::path& path, int number) {
  return system_error(cohive::Errc::io, number, "state file " + path.string());
}

msgpack::Value value_of(const WireRecord& record) {
  return msgpack::Array{{msgpack::Value::bin(record.key.bytes), msgpack::Bin{record.tag}, msgpack::Bin{record.value},
                         record.expiration, record.in_cache}};
}

msgpack::Value value_of(const SavedPeer& peer) {
  msgpack::Array addresses;
  for (const auto& address : peer.addresses) addresses.items.push_back(msgpack::Value::bin(address.bytes()));
  return msgpack::Array{
      {msgpack::Value::bin(peer.id.bytes), msgpack::Value::bin(peer.peer.bytes()), std::move(addresses)}};
}

template <class Item>
msgpack::Array list_of(const std::vector<Item>& items) {
  msgpack::Array list;
  list.items.reserve(items.size());
  for (const auto& item : items) list.items.push_back(value_of(item));
  return list;
}

/// The fields of a list with exactly `count`, or null.
const std::vector<msgpack::Value>* fields(const msgpack::Value& value, std::size_t count) {
  const auto* list = value.get_if<msgpack::Array>();
  return list && list->items.size() == count ? &list->items : nullptr;
}

std::optional<DhtId> id_of(const msgpack::Value* value) {
  const auto* bytes = value ? value->get_if<msgpack::Bin>() : nullptr;
  return bytes ? DhtId::from_bytes(as_bytes(bytes->data)) : std::nullopt;
}
std::optional<PeerId> peer_of(const msgpack::Value* value) {
  const auto* bytes = value ? value->get_if<msgpack::Bin>() : nullptr;
  return bytes ? PeerId::from_bytes(as_bytes(bytes->data)) : std::nullopt;
}

std::optional<WireRecord> read_record(const msgpack::Value& value) {
  const auto* parts = fields(value, 5);
  if (!parts) return std::nullopt;
  const auto key = id_of(&(*parts)[0]);
  const auto *tag = (*parts)[1].get_if<msgpack::Bin>(), *bytes = (*parts)[2].get_if<msgpack::Bin>();
  const auto* expiration = (*parts)[3].get_if<double>();
  const auto* cached = (*parts)[4].get_if<bool>();
  if (!key || !tag || !bytes || !expiration || !cached) return std::nullopt;
  return WireRecord{*key, tag->data, bytes->data, *expiration, *cached};
}

/// Reads a peer; nullopt also where none of its addresses is of a kind that this version knows.
std::optional<SavedPeer> read_peer(const msgpack::Value& value) {
  const auto* parts = fields(value, 3);
  const auto id = parts ? id_of(&(*parts)[0]) : std::nullopt;
  const auto peer = parts ? peer_of(&(*parts)[1]) : std::nullopt;
  const auto* list = parts ? (*parts)[2].get_if<msgpack::Array>() : nullptr;
  if (!id || !peer || !list) return std::nullopt;
  SavedPeer result{*id, *peer, {}};
  for (const auto& item : list->items) {
    const auto* bytes = item.get_if<msgpack::Bin>();
    auto address = bytes ? Multiaddr::from_bytes(as_bytes(bytes->data)) : Error(cohive::Errc::malformed);
    if (address && result.addresses.size() < kMaxAddresses) result.addresses.push_back(std::move(*address));
  }
  if (result.addresses.empty()) return std::nullopt;
  return result;
}

/// A value takes a byte at least: whatever was written is within this bound.
Result<msgpack::Value> decode_own(std::string_view bytes) {
  return msgpack::decode(as_bytes(bytes), bytes.size());
}

template <class Item, class Read>
std::optional<std::vector<Item>> read_list(const msgpack::Value* value, Read read) {
  const auto* list = value ? value->get_if<msgpack::Array>() : nullptr;
  if (!list) return std::nullopt;
  std::vector<Item> items;
  for (const auto& one : list->items)
    if (auto item = read(one)) items.push_back(std::move(*item));
  return items;
}

std::optional<SavedState> read_map(const msgpack::Value& value) {
  const auto* map = value.get_if<msgpack::Map>();
  const auto peer = map ? peer_of(map->find("peer")) : std::nullopt;
  const auto node_id = map ? id_of(map->find("node_id")) : std::nullopt;
  auto peers = map ? read_list<SavedPeer>(map->find("peers"), read_peer) : std::nullopt;
  if (!peer || !node_id || !peers) return std::nullopt;
  return SavedState{*peer, *node_id, std::move(*peers)};
}

std::filesystem::path temporary_of(const std::filesystem::path& path) {
  // One name, so that crashes leave one such file at most, which the next write replaces.
  return path.string() + ".new";
}

/// False with errno set.
bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// A rename is safe on the disk only when its directory is.
void sync_directory(const std::filesystem::path& path) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  (void)::fsync(directory);
  ::close(directory);
}

}  // namespace

// ---- Writing

Result<StateWriter> StateWriter::create(std::filesystem::path path, const SavedState& state) {
  const auto temporary = temporary_of(path);
  // What an earlier crash left, or a link that was put there, goes: it is not ours to write through.
  ::unlink(temporary.c_str());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return file_error(path, errno);
  StateWriter writer(std::move(path), file);
  if (!write_all(file, kMagic)) return writer.failed(errno);
  TRY(writer.append(msgpack::encode(msgpack::Map{{{"peer", msgpack::Value::bin(state.peer.bytes())},
                                                  {"node_id", msgpack::Value::bin(state.node_id.bytes)},
                                                  {"peers", list_of(state.peers)}}})));
  return writer;
}

StateWriter::StateWriter(StateWriter&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

StateWriter::~StateWriter() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_of(path_).c_str());
}

Error StateWriter::failed(int error) {
  return file_error(path_, error);
}

Result<> StateWriter::append(std::string_view payload) {
  std::string piece;
  piece.reserve(kLengthBytes + kDigestBytes + payload.size());
  for (std::size_t i = kLengthBytes; i-- > 0;) piece.push_back(static_cast<char>(payload.size() >> 8 * i));
  piece += as_text(crypto::sha256(as_bytes(payload)));
  piece += payload;
  if (!write_all(file_, piece)) return failed(errno);
  return ok();
}

Result<> StateWriter::add(const std::vector<WireRecord>& records) {
  return records.empty() ? ok() : append(msgpack::encode(list_of(records)));
}

Result<> StateWriter::finish() {
  TRY(append({}));
  if (::fsync(file_) != 0 || ::rename(temporary_of(path_).c_str(), path_.c_str()) != 0) return failed(errno);
  ::close(std::exchange(file_, -1));
  sync_directory(path_);
  return ok();
}

Result<> write_state(const std::filesystem::path& path, const SavedState& state) {
  TRY(auto writer, StateWriter::create(path, state));
  return writer.finish();
}

// ---- Reading

Result<StateReader> StateReader::open(const std::filesystem::path& path, StateLimits limits) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error)
    return file_error(cohive::Errc::not_found, path, "is not there yet");
  const auto size = std::filesystem::file_size(path, error);
  if (error) return file_error(path, error.value());
  StateReader reader(std::ifstream(path, std::ios::binary), size);
  std::string magic(kMagic.size(), '\0');
  const bool read = !!reader.file_.read(magic.data(), static_cast<std::streamsize>(magic.size()));
  if (!read || (magic != kMagic && magic != kMagic1))
    return file_error(cohive::Errc::malformed, path, "is no state of a DHT node");
  reader.left_ -= magic.size();
  const Error damaged = file_error(cohive::Errc::malformed, path, "is damaged");
  if (magic == kMagic1) {
    if (!reader.read_all_of_version_1(limits)) return damaged;
    return reader;
  }
  const auto first = reader.take_piece();
  const auto value = first ? decode_own(*first) : Result<msgpack::Value>(damaged);
  auto state = value ? read_map(*value) : std::nullopt;
  if (!state) return damaged;
  reader.state_ = std::move(*state);
  if (reader.state_.peers.size() > limits.max_peers) reader.state_.peers.resize(limits.max_peers);
  return reader;
}

/// The payload of the next piece; nullopt where it is damaged, or does not end within the file: then it was the last.
std::optional<std::string> StateReader::take_piece() {
  std::array<char, kLengthBytes + kDigestBytes> head{};
  std::uint64_t length = 0;
  const bool whole = left_ >= head.size() && file_.read(head.data(), head.size());
  for (std::size_t i = 0; i < kLengthBytes; ++i) length = length << 8 | static_cast<std::uint8_t>(head[i]);
  if (!whole || length > left_ - head.size()) {
    ended_ = true;
    return std::nullopt;
  }
  left_ -= head.size() + length;
  std::string payload(static_cast<std::size_t>(length), '\0');
  if (!file_.read(payload.data(), static_cast<std::streamsize>(length))) {
    ended_ = true;
    return std::nullopt;
  }
  const auto digest = crypto::sha256(as_bytes(payload));
  if (as_text(digest) != std::string_view(head.data() + kLengthBytes, kDigestBytes)) return std::nullopt;
  return payload;
}

std::vector<WireRecord> StateReader::next() {
  std::vector<WireRecord> records = std::exchange(waiting_, {});
  while (!ended_ && records.empty()) {
    const auto payload = take_piece();
    if (payload && payload->empty()) {
      ended_ = true;
      damaged_ = damaged_ || left_ > 0;
      break;
    }
    const auto value = payload ? decode_own(*payload) : Result<msgpack::Value>(Error(cohive::Errc::malformed));
    auto list = value ? read_list<WireRecord>(&*value, read_record) : std::nullopt;
    if (list) {
      records = std::move(*list);
    } else {
      damaged_ = true;
    }
  }
  return records;
}

bool StateReader::read_all_of_version_1(const StateLimits& limits) {
  std::string content(static_cast<std::size_t>(left_), '\0');
  if (left_ < kDigestBytes || !file_.read(content.data(), static_cast<std::streamsize>(left_))) return false;
  ended_ = true;
  const std::string_view body = std::string_view(content).substr(kDigestBytes);
  const auto digest = crypto::sha256(as_bytes(body));
  if (!content.starts_with(as_text(digest))) return false;
  const auto value = decode_own(body);
  auto state = value ? read_map(*value) : std::nullopt;
  if (!state) return false;
  auto records = read_list<WireRecord>(value->get_if<msgpack::Map>()->find("records"), read_record);
  if (!records) return false;
  state_ = std::move(*state);
  if (state_.peers.size() > limits.max_peers) state_.peers.resize(limits.max_peers);
  waiting_ = std::move(*records);
  return true;
}

}  // namespace cohive::dht
