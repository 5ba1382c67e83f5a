#include "scenarios/hostile_peer.hpp"

#include <cmath>

#include "averaging/wire.hpp"
#include "cohive/codec/codec.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kSilence = 10s;

std::string schema_of(const std::vector<std::uint32_t>& sizes) {
  std::vector<TensorInfo> tensors;
  for (std::uint32_t size : sizes) tensors.push_back({{size}});
  return schema_hash(tensors);
}

std::string protocol(const AveragerOptions& options, const char* method) {
  return options.prefix + "::" + options.class_name + "." + method;
}

}  // namespace

HostilePeer::HostilePeer(Dht& dht, AveragerOptions options, std::vector<std::uint32_t> sizes, std::uint64_t seed,
                         Malice malice)
    : dht_(dht),
      options_(std::move(options)),
      sizes_(std::move(sizes)),
      random_(seed),
      malice_(malice),
      metrics_(dht.runtime().metrics(), "hostile"),
      offered_(options_.agreed_codec ? codec::CodecSet{options_.agreed_codec->fixed()->codec} : codec::CodecSet()),
      finder_(make_matchmaking({dht, group_options(options_), metrics_,
                                options_.prefix + "::" + options_.class_name + ".", schema_of(sizes_), offered_})),
      server_(dht.host()) {
  finder_->serve(server_);
  server_.add_streaming(protocol(options_, "rpc_aggregate_part"),
                        [this](rpc::ServerStream& s) { return answer_nonsense(*this, s); });
}

Task<std::optional<Group>> HostilePeer::join() {
  const SearchPlan plan(dht_.runtime());
  Member self;
  self.peer = id();
  auto group = co_await finder_->find(std::move(self), plan, dht_.runtime().after(20s));
  co_return group ? std::optional(std::move(*group)) : std::nullopt;
}

Task<void> HostilePeer::misbehave() {
  const auto group = co_await join();
  if (!group) co_return;
  if (malice_ == Malice::silence) co_return co_await dht_.runtime().sleep_for(kSilence);
  Nursery calls(dht_.runtime(), "hostile calls");
  for (const auto& member : group->members)
    if (member.peer != id()) calls.spawn(send_nonsense(*this, member.peer, group->id + group->view));
  co_await calls.join();
}

Task<void> HostilePeer::send_part(int compression, Slice buffer, std::size_t elements) {
  const auto group = co_await join();
  if (!group) co_return;
  const Envelope envelope = envelope_part(4, group->id + group->view, buffer.size(), elements, compression, 1);
  Nursery calls(dht_.runtime(), "hostile calls");
  for (const auto& member : group->members)
    if (member.peer != id())
      calls.spawn(send_message(*this, member.peer, envelope.head + to_string(buffer.view()) + envelope.tail));
  co_await calls.join();
}

Task<void> HostilePeer::send_message(HostilePeer& self, PeerId to, std::string message) {
  const Deadline end = self.dht_.runtime().after(20s);
  auto call = co_await rpc::open_call(self.dht_.host(), to, protocol(self.options_, "rpc_aggregate_part"), end);
  if (call && co_await (*call)->send(as_bytes(message), end)) (void)co_await (*call)->receive(end);
}

/// Cut off, or of top_k with another count or other places, which may be out of order or out of range.
Slice HostilePeer::in_agreed_codec(std::span<const float> values) {
  const codec::CodecSpec agreed = *options_.agreed_codec->fixed();
  Slice buffer = codec::encode(agreed, values);
  if (buffer.size() > 8 && agreed.codec == codec::Codec::top_k && below(2))
    buffer.mutable_data()[below(4 + (buffer.size() - 4) / 2)] = static_cast<std::uint8_t>(below(256));
  return below(4) ? buffer : buffer.sub(0, below(buffer.size() + 1));
}

/// A message that may be right by chance, is cut off, or carries a part of another size, dtype, codec, weight or value.
std::string HostilePeer::nonsense(bool first, const std::string& group_id, int code) {
  const codec::Codec right = options_.codec.fixed()->codec;
  const std::size_t length = options_.part_size_bytes / 4;
  std::vector<float> values(below(3) ? length : below(2 * length + 1), 0.25f);
  if (!values.empty() && below(3) == 0)
    values[below(values.size())] =
        below(2) || right == codec::Codec::float16 ? NAN : -INFINITY;  // halves make infinity a number
  const bool agreed = options_.agreed_codec && below(4);
  const Slice buffer =
      agreed ? in_agreed_codec(values)
             : codec::encode(
                   codec::codec_for(right, codec::DType::float32, {static_cast<std::uint32_t>(values.size())}), values);
  const double weights[] = {1, 1, 1, 1, 0, -1, NAN, INFINITY};
  const std::size_t claimed = below(8) ? values.size() : below(1u << 31);
  const int codec = below(8) == 0 ? static_cast<int>(below(9))
                    : agreed      ? static_cast<int>(options_.agreed_codec->fixed()->codec)
                                  : static_cast<int>(right);
  const Envelope envelope = envelope_part(first || below(8) == 0 ? code : 0, first ? group_id : std::string(),
                                          buffer.size(), claimed, codec, weights[below(8)]);
  std::string message = envelope.head + to_string(buffer.view()) + envelope.tail;
  if (below(8) == 0) message.resize(below(message.size() + 1));
  // Not in the values: one that is huge and still a number is taken by a plain mean, as docs/security.md says.
  const std::size_t head = std::min({message.size(), envelope.head.size(), std::size_t{64}});
  if (below(8) == 0)
    for (int i = 0; i < 8 && head > 0; ++i) message[below(head)] = static_cast<char>(below(256));
  return message;
}

Task<void> HostilePeer::send_nonsense(HostilePeer& self, PeerId to, std::string group_id) {
  Runtime& runtime = self.dht_.runtime();
  auto call =
      co_await rpc::open_call(self.dht_.host(), to, protocol(self.options_, "rpc_aggregate_part"), runtime.after(5s));
  if (!call) co_return;
  const std::size_t messages = self.below(12);
  for (std::size_t i = 0; i < messages; ++i) {
    const std::string message = self.nonsense(i == 0, group_id, 4);
    if (!co_await (*call)->send(as_bytes(message), runtime.after(5s))) co_return;
    if (self.below(8) == 0) co_await runtime.sleep_for(from_seconds(double(self.below(5))));
  }
  if (self.below(2)) (void)co_await (*call)->finish(runtime.after(5s));
  while (self.below(4)) {
    auto reply = co_await (*call)->receive(runtime.after(5s));
    if (!reply || !*reply) co_return;
  }
  if (self.below(2)) co_await runtime.sleep_for(20s);
}

Task<Result<>> HostilePeer::answer_nonsense(HostilePeer& self, rpc::ServerStream& stream) {
  Runtime& runtime = self.dht_.runtime();
  if (self.malice_ == Malice::silence) co_await runtime.sleep_for(1h);
  for (std::size_t i = self.below(6); i > 0; --i) {
    auto request = co_await stream.receive(runtime.after(5s));
    if (!request || !*request) break;
  }
  for (std::size_t i = self.below(6); i > 0; --i) {
    // Differences of ones that do exist would be believed: only what can be seen to be wrong.
    std::string message = self.nonsense(false, {}, 5);
    auto parsed = parse_part(as_bytes(message));
    if (parsed && parsed->code == 5 && parsed->tensor) message.resize(message.size() / 2);
    if (auto sent = co_await stream.send(as_bytes(message), runtime.after(5s)); !sent) co_return sent;
  }
  if (self.below(3) == 0) co_await runtime.sleep_for(20s);
  co_return ok();
}

}  // namespace cohive::averaging
