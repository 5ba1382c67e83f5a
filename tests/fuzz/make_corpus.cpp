// Writes the seeds from which the fuzzers start: real messages, as this library and its peers send them.
//   make_corpus FOLDER    one folder per target below it; files that are there already stay
#include <filesystem>
#include <fstream>
#include <iostream>

#include "averaging/states/manifest.hpp"
#include "cohive/checkpoint/safetensors.hpp"
#include "cohive/codec/codec.hpp"
#include "cohive/core/crypto.hpp"
#include "cohive/core/signed_record.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/varint.hpp"
#include "cohive/dht/validation.hpp"
#include "cohive/proto/averaging.pb.h"
#include "cohive/proto/crypto.pb.h"
#include "cohive/proto/dht.pb.h"
#include "cohive/proto/p2p.pb.h"
#include "cohive/proto/progress.pb.h"
#include "cohive/proto/rpc.pb.h"
#include "core/vectors.hpp"
#include "dht/storage.hpp"
#include "p2p/autonat_message.hpp"
#include "p2p/circuit_message.hpp"
#include "train/exchanges/parameter_greeting.hpp"
#include "train/link_fit.hpp"
#include "train/progress_entry.hpp"
#include "train/shards/sums.hpp"

namespace cohive::fuzz {
namespace {

class Corpus {
 public:
  explicit Corpus(std::filesystem::path root) : root_(std::move(root)) {}
  void add(const std::string& target, const std::string& name, std::string_view bytes) const {
    std::filesystem::create_directories(root_ / target);
    std::ofstream(root_ / target / name, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  void add(const std::string& target, const std::string& name, ByteView bytes) const {
    add(target, name, as_text(bytes));
  }
  /// An input whose first byte chooses among the modes of its target.
  void add(const std::string& target, const std::string& name, int mode, std::string_view bytes) const {
    add(target, name, std::string(1, static_cast<char>(mode)).append(bytes));
  }

 private:
  std::filesystem::path root_;
};

const KeyPair kKey = KeyPair::ed25519_from_seed(Bytes(32, 5));
const std::string kNode(20, 'n');

std::string token(std::string_view text) {
  std::string out;
  append_varint(out, text.size() + 1);
  return out.append(text) + "\n";
}
std::string binary_address(const char* text) {
  return Multiaddr::from_text(text).value().binary();
}

void core(const Corpus& corpus) {
  const auto& vectors = testing::libp2p_vectors();
  for (const auto& [name, key] : vectors.at("keys").items()) {
    corpus.add("keys", name + "_public", testing::hex_of(key.at("public")));
    if (key.contains("private") && name != "rsa")
      corpus.add("keys", name + "_private", testing::hex_of(key.at("private")));
    corpus.add("peer_id", name + "_text", testing::text_of(key.at("peer_id")));
    corpus.add("peer_id", name + "_bytes", testing::hex_of(key.at("peer_id_hex")));
  }
  corpus.add("peer_id", "cid", "bafzbeie5745rpv2m6tjyuugywy4d5ewrqgqqhfnf445he3omzpjbx5xqxe");
  int number = 0;
  const std::string relayed = "/ip4/192.0.2.7/tcp/4001/p2p/" + kKey.peer_id().text() + "/p2p-circuit";
  for (const std::string& text :
       {std::string("/ip4/127.0.0.1/tcp/4001"), std::string("/ip6/2001:db8::1/udp/443/quic-v1/webtransport"),
        std::string("/dns4/example.com/tcp/443/wss"), std::string("/dnsaddr/bootstrap.libp2p.io"),
        std::string("/unix/a/b"), std::string("/ip6zone/eth0/ip6/fe80::1/tcp/1"), relayed}) {
    const auto address = Multiaddr::from_text(text);
    if (!address) continue;
    corpus.add("multiaddr", "text_" + std::to_string(++number), text);
    corpus.add("multiaddr", "bytes_" + std::to_string(number), address->bytes());
  }
  corpus.add("signed_record", "two_addresses",
             make_signed_peer_record(kKey, 1'700'000'000,
                                     {Multiaddr::from_text("/ip4/192.0.2.7/tcp/1").value(),
                                      Multiaddr::from_text("/dns/a.example/tcp/2").value()}));
  using namespace msgpack;
  const Value nested = Map{{{"a", Array{{1, -1, 70000, 1.5, nullptr, true}}}, {"b", Tuple{{"x", Bin{"y"}}}}}};
  corpus.add("msgpack", "nested", encode(nested));
  corpus.add("msgpack", "numbers",
             encode(Array{{127, 128, 65536, std::int64_t{-40000}, std::int64_t{-1} << 40, 1e300}}));
  corpus.add("msgpack", "long", encode(Array{{std::string(300, 's'), Bin{std::string(700, 'b')}}}));
  std::string ext;
  append_ext(ext, 0x50, encode(nested));
  corpus.add("msgpack", "ext", ext);
  corpus.add("msgpack", "nothings",
             std::string_view("\xdd\x00\x03\xff\xf0\xc0", 6));  // promises 256 Ki of the last byte
}

void transport(const Corpus& corpus) {
  const std::string header = token("/multistream/1.0.0");
  corpus.add("multistream", "answered", 0, header + token("/other") + token("ls") + token("/chat/1") + "payload");
  corpus.add("multistream", "selected", 1, header + token("na") + token("/chat/1"));
  corpus.add("multistream", "lazy", 2, header + token("/chat/1") + "reply");

  const auto payload_for = [](std::uint8_t number) {
    crypto::Key32 secret{};
    secret.fill(number);
    Bytes text = to_bytes("noise-libp2p-static-key:");
    const auto key = crypto::X25519KeyPair::from_secret(secret).public_;
    text.insert(text.end(), key.begin(), key.end());
    const Bytes signature = kKey.sign(text);
    proto::NoiseHandshakePayload payload;
    payload.set_identity_key(kKey.public_key().protobuf());
    payload.set_identity_sig(signature.data(), signature.size());
    payload.mutable_extensions()->add_stream_muxers("/mplex/6.7.0");
    payload.mutable_extensions()->add_stream_muxers("/yamux/1.0.0");
    return payload.SerializeAsString();
  };
  corpus.add("noise", "payload_of_responder", 2, payload_for(0x40));
  corpus.add("noise", "payload_of_initiator", 3, payload_for(0x40));
  corpus.add("noise", "raw_first_message", 1, std::string("\0\x20", 2) + std::string(32, '\7'));
  corpus.add("noise", "raw_second_message", 0, std::string("\0\xd8", 2) + std::string(216, '\7'));

  const auto frame = [](int type, int flags, std::uint32_t id, std::uint32_t length, std::string_view payload = {}) {
    std::string out{'\0', static_cast<char>(type), static_cast<char>(flags >> 8), static_cast<char>(flags)};
    for (const std::uint32_t value : {id, length})
      for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
    return out.append(payload);
  };
  enum { kData, kWindow, kPing, kGoAway, kSyn = 1, kAck = 2, kFin = 4, kRst = 8 };
  const std::string start = frame(kPing, kAck, 0, 1);
  // A responder sees odd streams and answers to its own stream 2; an initiator the reverse.
  for (int role = 0; role < 2; ++role) {
    const std::uint32_t theirs = role ? 2 : 1, ours = role ? 1 : 2;
    std::string all(1, '\xff');
    all += start + frame(kWindow, kSyn, theirs, 0) + frame(kData, 0, theirs, 5, "hello") +
           frame(kWindow, kAck, ours, 1024) + frame(kData, kFin, ours, 2, "hi") + frame(kPing, kSyn, 0, 7) +
           frame(kData, kFin, theirs, 0) + frame(kData, kSyn, theirs + 2, 3, "abc") +
           frame(kWindow, kRst, theirs + 2, 0) + frame(kGoAway, 0, 0, 0);
    corpus.add("yamux", role ? "initiator" : "responder", role, all);
    all[0] = '\2';  // in pieces of three bytes
    corpus.add("yamux", role ? "initiator_in_pieces" : "responder_in_pieces", role, all);
  }

  int number = 0;
  for (const auto& vector : testing::libp2p_vectors()["tls_certificates"])
    corpus.add("tls_certificate", "vector_" + std::to_string(++number), 0,
               as_text(testing::hex_of(vector.at("certificate"))));
  const std::string der("\x30\x08\x04\x03key\x04\x01s", 10);
  corpus.add("tls_certificate", "extension", 1, der);
}

void names(const Corpus& corpus) {
  const auto two_bytes = [](std::size_t value) {
    return std::string{static_cast<char>(value >> 8), static_cast<char>(value)};
  };
  const auto record = [&](std::string_view data) {  // of the name in the question
    return (two_bytes(0xc00c) + two_bytes(16) + two_bytes(1) + two_bytes(0) + two_bytes(60) + two_bytes(data.size()))
        .append(data);
  };
  const auto answer = [&](std::size_t records, const std::string& all) {
    const std::string head =
        two_bytes(1) + two_bytes(0x8180) + two_bytes(1) + two_bytes(records) + two_bytes(0) + two_bytes(0);
    return head + std::string("\x08_dnsaddr\4boot\7example\0", 23) + two_bytes(16) + two_bytes(1) + all;
  };
  const std::string text = "dnsaddr=/ip4/192.0.2.7/tcp/4001";
  const std::string address = std::string(1, static_cast<char>(text.size())) + text;
  corpus.add("txt_answer", "two_records", answer(2, record(address) + record("\3one\3two")));
  corpus.add("txt_answer", "longer_than_its_record", answer(1, record("\x0ahello")));
  corpus.add("txt_answer", "more_than_there_are", answer(0xffff, record(address)));
  corpus.add("txt_answer", "empty_records", answer(3, record("") + record(std::string(1, '\0')) + record("")));
}

void peers(const Corpus& corpus) {
  proto::Identify identify;
  identify.set_public_key(kKey.public_key().protobuf());
  identify.add_listen_addrs(binary_address("/ip4/192.0.2.7/tcp/4001"));
  identify.add_protocols("/ipfs/kad/1.0.0");
  identify.add_protocols("/ipfs/ping/1.0.0");
  identify.set_observed_addr(binary_address("/ip4/10.0.0.1/tcp/9"));
  identify.set_agent_version("go-libp2p");
  identify.set_signed_peer_record(
      make_signed_peer_record(kKey, 1, {Multiaddr::from_text("/ip4/1.2.3.4/tcp/5").value()}));
  corpus.add("identify", "push", 0, identify.SerializeAsString());
  corpus.add("identify", "answer", 1, identify.SerializeAsString());
  identify.clear_public_key();
  corpus.add("identify", "without_key", 0, identify.SerializeAsString());
  std::string framed;
  append_varint(framed, identify.ByteSizeLong());
  corpus.add("identify", "raw", 2, framed + identify.SerializeAsString());

  proto::KadMessage request;
  request.set_type(proto::KadMessage::FIND_NODE);
  request.set_key(kKey.peer_id().binary());
  corpus.add("kad", "find_node", 0, request.SerializeAsString());
  request.set_type(proto::KadMessage::PING);
  corpus.add("kad", "ping", 0, request.SerializeAsString());
  proto::KadMessage reply;
  reply.set_type(proto::KadMessage::FIND_NODE);
  auto* closer = reply.add_closer_peers();
  closer->set_id(KeyPair::ed25519_from_seed(Bytes(32, 77)).peer_id().binary());
  closer->add_addrs(binary_address("/ip4/10.0.0.9/tcp/4001"));
  closer->set_connection(1);
  corpus.add("kad", "reply", 1, reply.SerializeAsString());
  corpus.add("kad", "empty_peers", 0, request.SerializeAsString() + std::string("\x42\x00", 2));

  const auto public_address = Multiaddr::from_text("/ip4/8.8.4.4/tcp/31337").value();
  corpus.add("autonat", "request", 0,
             p2p::encode(p2p::DialBackRequest{
                 kKey.peer_id(), {public_address, Multiaddr::from_text("/ip4/192.168.1.5/tcp/9").value()}}));
  corpus.add("autonat", "reached", 1, p2p::encode(p2p::DialBackResponse{proto::AutoNat::OK, {}, public_address}));
  corpus.add("autonat", "refused", 1,
             p2p::encode(p2p::DialBackResponse{proto::AutoNat::E_DIAL_REFUSED, "too many dials", std::nullopt}));

  proto::Hop hop;
  hop.set_type(proto::Hop::RESERVE);
  corpus.add("relay", "reserve", 0, hop.SerializeAsString());
  hop.set_type(proto::Hop::STATUS);
  hop.set_status(proto::RELAY_OK);
  hop.mutable_limit()->set_data(131072);
  hop.mutable_reservation()->set_expire(1700000000);
  hop.mutable_reservation()->add_addrs(public_address.with_peer(kKey.peer_id()).binary());
  hop.mutable_reservation()->set_voucher(p2p::make_voucher(kKey, kKey.peer_id(), 1700000000));
  corpus.add("relay", "granted", 0, hop.SerializeAsString());
  proto::Stop stop;
  stop.set_type(proto::Stop::CONNECT);
  stop.mutable_peer()->set_id(kKey.peer_id().binary());
  stop.mutable_limit()->set_duration(120);
  corpus.add("relay", "stop", 1, stop.SerializeAsString());
  proto::HolePunch punch;
  punch.set_type(proto::HolePunch::CONNECT);
  punch.add_observed_addrs(public_address.binary());
  corpus.add("relay", "punch", 2, punch.SerializeAsString());
  corpus.add("relay", "address", 3,
             p2p::circuit_through(public_address, kKey.peer_id()).with_peer(kKey.peer_id()).binary());
  corpus.add("relay", "voucher", 4, p2p::make_voucher(kKey, kKey.peer_id(), 1700000000));

  proto::PersistentConnectionRequest call;
  call.set_call_id(std::string(16, 'i'));
  call.mutable_call_unary()->set_peer("");
  call.mutable_call_unary()->set_proto("Test.rpc_unary");
  call.mutable_call_unary()->set_data("request");
  framed.clear();
  append_varint(framed, call.ByteSizeLong());
  corpus.add("rpc", "unary_request", 0, framed + call.SerializeAsString());
  proto::PersistentConnectionRequest answer;
  answer.set_call_id(std::string(16, 'i'));
  answer.mutable_unary_response()->set_response("reply");
  framed.clear();
  append_varint(framed, answer.ByteSizeLong());
  corpus.add("rpc", "unary_reply", 2, framed + answer.SerializeAsString());
  const auto record = [](char marker, std::string_view payload) {
    std::string out(1, marker);
    for (int shift = 56; shift >= 0; shift -= 8) out.push_back(static_cast<char>(payload.size() >> shift & 255));
    return out.append(payload);
  };
  proto::RPCError error;
  error.set_message("kaboom");
  corpus.add("rpc", "stream_requests", 1, record(0, "one") + record(0, "two") + record(1, ""));
  corpus.add("rpc", "stream_replies", 3, record(0, "one") + record(1, error.SerializeAsString()));
}

/// Steps of the target `connection`, see take_step() there.
namespace steps {
enum Protocol { ping, store, find, unary, stream, kad, identify, push };
std::string number(std::size_t value, int bytes) {
  std::string out;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift & 255));
  return out;
}
std::string step(char kind, int first) {
  return {kind, static_cast<char>(first)};
}
std::string bytes(std::string_view text, int digits) {
  return number(text.size(), digits).append(text);
}
std::string open(Protocol protocol) {
  return step(0, protocol);
}
std::string message(int stream, std::string_view text) {
  return step(2, stream) + bytes(text, 2);
}
std::string record(int stream, char marker, std::string_view text) {
  return step(3, stream) + marker + bytes(text, 2);
}
std::string call(Protocol protocol, int stream, std::string_view request) {
  return step(4, protocol) + static_cast<char>(stream) + bytes(request, 2);
}
/// Bytes, and others many times.
std::string repeat(int stream, std::string_view first, std::string_view again, std::size_t times) {
  return step(5, stream) + bytes(first, 1) + bytes(again, 1) + number(times, 3);
}
std::string end(int stream) {
  return step(6, stream);
}
std::string reset(int stream) {
  return step(7, stream);
}
std::string pass(int tenths) {
  return step(9, tenths);
}
/// The frame of a call, and as much of its data as there is before what comes many times.
std::string head_of_call(const std::string& protocol, std::size_t size, std::string_view data) {
  proto::PersistentConnectionRequest call;
  call.set_call_id(std::string(16, 'i'));
  call.mutable_call_unary()->set_peer("");
  call.mutable_call_unary()->set_proto(protocol);
  std::string inside = call.call_unary().SerializePartialAsString();
  inside.push_back('\x1a');  // field 3, the data
  append_varint(inside, size);
  std::string outside;
  outside.push_back('\x0a');  // field 1, the id
  append_varint(outside, call.call_id().size());
  outside += call.call_id();
  outside.push_back('\x1a');  // field 3, call_unary
  append_varint(outside, inside.size() + size);
  std::string framed;
  append_varint(framed, outside.size() + inside.size() + size);
  return framed + outside + inside + std::string(data);
}
}  // namespace steps

void connections(const Corpus& corpus, const std::string& ping, const std::string& store, const std::string& find) {
  using namespace steps;
  corpus.add("connection", "calls",
             call(steps::ping, 0, ping) + pass(5) + call(steps::store, 1, store) + pass(5) +
                 call(steps::find, 2, find) + end(0) + pass(20) + reset(1));
  corpus.add("connection", "stream",
             open(stream) + record(0, 0, "one") + record(0, 0, "two") + record(0, 1, "") + end(0));
  corpus.add("connection", "kad", open(kad) + message(0, std::string_view("\x08\x04\x12\x03key", 7)) + pass(3));
  // The peer asks who we are.
  corpus.add("connection", "answered",
             message(128, "/multistream/1.0.0\n") + message(128, "/ipfs/id/1.0.0\n") +
                 message(128, std::string_view("\x2a\x01x", 3)) + end(128) + pass(10));
  // As long as frames may be, nearly: empty keys, a request that hardly begins, records.
  constexpr std::size_t kLongCall = 4'000'000, kLongRecord = 0xf00000;
  const auto long_call = [](const char* method, std::string_view again, std::size_t times) {
    return repeat(0, head_of_call(method, kLongCall, ""), again, times) + pass(20);
  };
  corpus.add("connection", "empty_keys",
             open(steps::find) + long_call("DHTProtocol.rpc_find", std::string_view("\x0a\0", 2), kLongCall / 2));
  corpus.add("connection", "long_unary",
             open(unary) + long_call("Test.rpc_unary", std::string(64, 'u'), kLongCall / 64));
  corpus.add("connection", "announced", open(unary) + long_call("Test.rpc_unary", "u", 10));
  const std::string_view head_of_record("\0\0\0\0\0\0\xf0\0\0", 9);
  corpus.add("connection", "long_record",
             open(stream) + repeat(0, head_of_record, std::string(64, 'r'), kLongRecord / 64) + pass(20));
  std::string many;
  for (int i = 0; i < 60; ++i) many += open(unary) + reset(i);
  corpus.add("connection", "opened_and_reset", many);
}

/// The time of simulated swarms.
double in(double seconds) {
  return SimRuntime().wall_time() + seconds;
}

std::string dictionary() {
  dht::Dictionary entries;
  entries.put(*dht::Subkey::from_value("a"), msgpack::encode(1), in(50));
  entries.put(*dht::Subkey::from_value(msgpack::Bin{"b"}), msgpack::encode("two"), in(60));
  entries.put(*dht::Subkey::from_value(msgpack::Tuple{{1, "c"}}), msgpack::encode(nullptr), in(70));
  return entries.encoded();
}

dht::Record signed_progress() {
  const dht::RsaSignatureValidator owner;
  dht::Record record{
      dht::DhtId::of("run_progress").binary(), msgpack::encode(msgpack::Bin{owner.ownership_marker()}), {}, 1.7e9};
  record.value = msgpack::encode(msgpack::Map{{{"peer_id", msgpack::Bin{kKey.peer_id().binary()}},
                                               {"epoch", 3},
                                               {"samples_accumulated", 128},
                                               {"samples_per_second", 1.5},
                                               {"time", 1.7e9},
                                               {"client_mode", false}}});
  record.value = owner.sign_value(record);
  return record;
}

void dht_messages(const Corpus& corpus) {
  const dht::Record progress = signed_progress();
  const auto with_subkey = [](std::string_view subkey, std::string_view value) {
    std::string out{static_cast<char>(subkey.size() >> 8), static_cast<char>(subkey.size())};
    return out.append(subkey).append(value);
  };
  corpus.add("dht_record", "signed_progress", with_subkey(progress.subkey, progress.value));
  corpus.add("dht_record", "dictionary", with_subkey(msgpack::encode(msgpack::Tuple{{1, 2.0}}), dictionary()));

  proto::PingRequest ping;
  ping.mutable_peer()->set_node_id(kNode);
  ping.set_validate(true);
  corpus.add("dht_request", "ping", 0, ping.SerializeAsString());
  proto::StoreRequest store;
  const auto put = [&store](const std::string& key, const std::string& tag, const std::string& value, bool cached) {
    store.add_keys(dht::DhtId::of(key).binary());
    store.add_subkeys(tag);
    store.add_values(value);
    store.add_expiration_time(in(100));
    store.add_in_cache(cached);
  };
  put("plain", std::string(dht::kRegularTag), msgpack::encode("value"), false);
  put("run_progress", progress.subkey, progress.value, false);
  put("dict", "", dictionary(), true);
  store.mutable_peer()->set_node_id(kNode);
  corpus.add("dht_request", "store", 1, store.SerializeAsString());
  proto::FindRequest find;
  find.add_keys(dht::DhtId::of("plain").binary());
  find.add_keys(dht::DhtId::of("dict").binary());
  find.mutable_peer()->set_node_id(kNode);
  corpus.add("dht_request", "find", 2, find.SerializeAsString());
  corpus.add("dht_request", "empty_keys", 2, find.SerializeAsString() + std::string("\x12\x00", 2));
  corpus.add("dht_request", "empty_records", 1, std::string("\x12\x00\x1a\x00\x22\x00", 6));
  connections(corpus, ping.SerializeAsString(), store.SerializeAsString(), find.SerializeAsString());

  proto::PingResponse pong;
  pong.mutable_peer()->set_node_id(kNode);
  pong.set_dht_time(in(0));
  corpus.add("dht_reply", "ping", 0, pong.SerializeAsString());
  proto::StoreResponse stored;
  stored.add_store_ok(true);
  stored.mutable_peer()->set_node_id(kNode);
  corpus.add("dht_reply", "store", 1, stored.SerializeAsString());
  proto::FindResponse found;
  auto* result = found.add_results();
  result->set_type(proto::FOUND_DICTIONARY);
  result->set_value(dictionary());
  result->set_expiration_time(in(70));
  result->add_nearest_node_ids(std::string(20, 'm'));
  result->add_nearest_peer_ids(kKey.peer_id().binary());
  found.mutable_peer()->set_node_id(kNode);
  corpus.add("dht_reply", "find_dictionary", 2, found.SerializeAsString());
  corpus.add("dht_record", "find_reply", with_subkey("", found.SerializeAsString()));
  result->set_type(proto::FOUND_REGULAR);
  result->set_value(msgpack::encode("value"));
  corpus.add("dht_reply", "find_regular", 2, found.SerializeAsString());
}

void averaging(const Corpus& corpus) {
  proto::Tensor tensor;
  const float values[] = {1, -2, 3.5};
  tensor.set_buffer(values, sizeof values);
  tensor.add_size(3);
  tensor.set_dtype("float32");
  tensor.set_requires_grad(true);
  tensor.set_chunks(1);
  proto::AveragingData part;
  part.set_group_id(std::string(20, 'g'));
  *part.mutable_tensor_part() = tensor;
  part.set_weight(0.5);
  corpus.add("averaging_wire", "part", part.SerializeAsString());
  proto::DownloadData chunk;
  chunk.set_metadata(msgpack::encode(msgpack::Array{{1, "meta"}}));
  *chunk.mutable_tensor_part() = tensor;
  corpus.add("averaging_wire", "download", chunk.SerializeAsString());
  corpus.add("averaging_wire", "gathered",
             msgpack::encode(msgpack::Array{{1e6, 0, msgpack::Bin{msgpack::encode(nullptr)}}}));
  const averaging::StateRoot root(averaging::kRootSize, 'r');
  corpus.add("averaging_wire", "manifest_request", averaging::encode_manifest_request(root));
  corpus.add("averaging_wire", "manifest_head", averaging::encode_manifest_head({root, 300}));
  corpus.add("averaging_wire", "piece", averaging::piece_head(7, 3) + "abc");
  averaging::Manifest manifest;
  manifest.metadata = msgpack::encode(msgpack::Array{{1, "meta"}});
  manifest.tensors = {{codec::DType::float32, {300, 200}, true, codec::Codec::float16, 60'000},
                      {codec::DType::uint8, {0, 5}, false, codec::Codec::none, 0},
                      {codec::DType::int64, {}, false, codec::Codec::none, 1}};
  manifest.hashes.resize(3);
  corpus.add("manifest", "three_tensors", averaging::encode_manifest(manifest));
  manifest.tensors.resize(1);
  manifest.hashes.resize(2);
  corpus.add("manifest", "one_tensor", averaging::encode_manifest(manifest));
  for (const auto& one : codec::all_codecs()) {
    for (const auto dtype : {codec::DType::float32, codec::DType::bfloat16, codec::DType::int64}) {
      codec::Tensor dense{dtype, {2, 8}, false, Slice::copy_of(Bytes(16 * codec::size_of(dtype), 1))};
      const auto encoded = codec::encode_tensor({one.codec, 0.5}, dense);
      if (!encoded) continue;
      const std::string head{static_cast<char>(one.codec), static_cast<char>(dtype), 2, 0, 2, 0, 8};
      corpus.add("codec", std::string(one.name) + "_" + std::string(codec::name_of(dtype)),
                 head + to_string(encoded->view()));
    }
  }
}

void progress(const Corpus& corpus) {
  constexpr double kNow = 1.7e9;  // as in the target
  const std::string report = train::seal_report(kKey, "run", {3, 128, 1.5, kNow, false});
  const train::ProgressSum sum{3, 5000, 64, kNow, 64, 2, 1, 0};
  proto::ProgressRequest request;
  request.set_bits(1);
  request.set_shard(1);
  request.set_draw(8);
  request.set_report(report);
  corpus.add("progress", "report_in_shard", 0, request.SerializeAsString());
  request.clear_report();
  request.set_root(true);
  train::encode_sum(sum, *request.mutable_sum());
  corpus.add("progress", "sum_of_shard", 0, request.SerializeAsString());
  proto::ProgressReply reply;
  train::encode_sum(sum, *reply.mutable_run());
  reply.add_reports(report);
  reply.set_writes(true);
  reply.set_nearer(2);
  corpus.add("progress", "reply", 1, reply.SerializeAsString());
  corpus.add("progress", "report", 2, report);
  corpus.add("progress", "entry", 3, msgpack::encode(train::entry_value(kKey.peer_id(), 3, 128, 1.5, kNow, false)));
  msgpack::Array wish{{7, 1234567}};
  train::write_wish({4096, true, false}, wish);
  corpus.add("progress", "wish", 4, msgpack::encode(std::move(wish)));
  corpus.add("progress", "greeting", 4, msgpack::encode(train::ParameterGreeting{4, 77}.value()));
}

void checkpoints(const Corpus& corpus) {
  checkpoint::Header header{{{"cohive.epoch", "42"}, {"user.text", "a \"quoted\"\nword"}},
                            {{"weight", codec::DType::float64, {3, 2}, 0, 48},
                             {"optimizer.0.step", codec::DType::float32, {}, 48, 52},
                             {"empty", codec::DType::boolean, {0, 5}, 52, 52}}};
  const auto add = [&](const std::string& name, char data_size) {
    const auto encoded = checkpoint::encode_header(header).value();
    corpus.add("safetensors", name, std::string{data_size, 0} + encoded.substr(8));
  };
  add("three_tensors", 52);
  header.tensors.resize(1);
  add("one_tensor", 48);
}

}  // namespace
}  // namespace cohive::fuzz

int main(int argc, char** argv) {
  using namespace cohive::fuzz;
  if (argc != 2) {
    std::cerr << "usage: make_corpus FOLDER" << std::endl;
    return 2;
  }
  const Corpus corpus(argv[1]);
  core(corpus);
  transport(corpus);
  names(corpus);
  peers(corpus);
  dht_messages(corpus);
  averaging(corpus);
  progress(corpus);
  checkpoints(corpus);
  return 0;
}
