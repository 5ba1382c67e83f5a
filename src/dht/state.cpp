// The state file: magic | SHA-256 of the rest | msgpack map {peer, node_id, records, peers}.
#include "cohive/dht/state.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/msgpack.hpp"

namespace cohive::dht {
namespace {

constexpr std::string_view kMagic = "cohive dht state 1\n";
constexpr std::size_t kOverhead = 16 * 1024 * 1024;  // headers, expirations and peers beside keys and values
constexpr std::size_t kMaxAddresses = 32;            // of one peer

Error file_error(cohive::Errc code, const std::filesystem::path& path, std::string_view what) {
  return Error(code, "state file " + path.string() + ": " + std::string(what));
}

msgpack::Value value_of(const SavedRecord& record) {
  return msgpack::Array{{msgpack::Value::bin(record.key.bytes), msgpack::Bin{record.tag}, msgpack::Bin{record.value},
                         record.expiration, record.cached}};
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

std::optional<SavedRecord> read_record(const msgpack::Value& value) {
  const auto* parts = fields(value, 5);
  if (!parts) return std::nullopt;
  const auto key = id_of(&(*parts)[0]);
  const auto *tag = (*parts)[1].get_if<msgpack::Bin>(), *bytes = (*parts)[2].get_if<msgpack::Bin>();
  const auto* expiration = (*parts)[3].get_if<double>();
  const auto* cached = (*parts)[4].get_if<bool>();
  if (!key || !tag || !bytes || !expiration || !cached) return std::nullopt;
  return SavedRecord{*key, tag->data, bytes->data, *expiration, *cached};
}

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
  return result;
}

std::optional<SavedState> decode(ByteView bytes) {
  const auto value = msgpack::decode(bytes);
  const auto* map = value ? value->get_if<msgpack::Map>() : nullptr;
  if (!map) return std::nullopt;
  const auto peer = peer_of(map->find("peer"));
  const auto node_id = id_of(map->find("node_id"));
  const auto *records = map->find("records"), *peers = map->find("peers");
  const auto* record_list = records ? records->get_if<msgpack::Array>() : nullptr;
  const auto* peer_list = peers ? peers->get_if<msgpack::Array>() : nullptr;
  if (!peer || !node_id || !record_list || !peer_list) return std::nullopt;
  SavedState state{*peer, *node_id, {}, {}};
  for (const auto& item : record_list->items)
    if (auto record = read_record(item)) state.records.push_back(std::move(*record));
  for (const auto& item : peer_list->items)
    if (auto known = read_peer(item)) state.peers.push_back(std::move(*known));
  return state;
}

/// All of it, or the reason.
const char* write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return std::strerror(errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return ::fsync(file) == 0 ? nullptr : std::strerror(errno);
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

Result<SavedState> read_state(const std::filesystem::path& path, StateLimits limits) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error)
    return file_error(cohive::Errc::not_found, path, "is not there yet");
  const auto size = std::filesystem::file_size(path, error);
  if (error) return file_error(cohive::Errc::io, path, error.message());
  if (size > limits.max_bytes + kOverhead) return file_error(cohive::Errc::malformed, path, "is too large");
  std::ifstream file(path, std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(file)), {});
  if (!file || content.size() != size) return file_error(cohive::Errc::io, path, "cannot be read");
  const std::size_t header = kMagic.size() + sizeof(crypto::Sha256Digest);
  if (content.size() < header || !content.starts_with(kMagic))
    return file_error(cohive::Errc::malformed, path, "is no state of a DHT node");
  const ByteView body = as_bytes(content).subspan(header);
  const auto digest = crypto::sha256(body);
  if (content.compare(kMagic.size(), digest.size(), as_text(digest)) != 0)
    return file_error(cohive::Errc::malformed, path, "is damaged");
  auto state = decode(body);
  if (!state) return file_error(cohive::Errc::malformed, path, "is damaged");
  if (state->peers.size() > limits.max_peers) state->peers.resize(limits.max_peers);
  return std::move(*state);
}

Result<> write_state(const std::filesystem::path& path, const SavedState& state) {
  const std::string body = msgpack::encode(msgpack::Map{{{"peer", msgpack::Value::bin(state.peer.bytes())},
                                                         {"node_id", msgpack::Value::bin(state.node_id.bytes)},
                                                         {"records", list_of(state.records)},
                                                         {"peers", list_of(state.peers)}}});
  std::string content(kMagic);
  content += as_text(crypto::sha256(as_bytes(body)));
  content += body;
  // One name, so that crashes leave one such file at most, which the next write replaces.
  const std::string temporary = path.string() + ".new";
  // What an earlier crash left, or a link that was put there, goes: it is not ours to write through.
  ::unlink(temporary.c_str());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return file_error(cohive::Errc::io, path, std::strerror(errno));
  const char* failure = write_all(file, content);
  ::close(file);
  if (!failure && ::rename(temporary.c_str(), path.c_str()) != 0) failure = std::strerror(errno);
  if (failure) {
    ::unlink(temporary.c_str());
    return file_error(cohive::Errc::io, path, failure);
  }
  sync_directory(path);
  return ok();
}

}  // namespace cohive::dht
