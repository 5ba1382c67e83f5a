#include "all_reduce.hpp"

#include <algorithm>
#include <cmath>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"

namespace cohive::averaging {
namespace {

enum Code { kPartForAveraging = 4, kAveragedPart = 5, kInternalError = 15 };

Deadline limit(Runtime& runtime, Duration timeout) { return timeout > 0s ? runtime.after(timeout) : Deadline::never(); }

template <class Sender>
Task<Result<>> send_enveloped(Sender& to, const Envelope& envelope, const Slice& buffer, Deadline deadline) {
  const ByteView parts[] = {as_bytes(envelope.head), buffer.view(), as_bytes(envelope.tail)};
  co_return co_await to.send(std::span<const ByteView>(parts), deadline);
}

}  // namespace

AllReduce::AllReduce(p2p::Host& host, const AveragerOptions& options, const AveragingMetrics& metrics,
                     std::vector<AveragedTensor> tensors, Setup setup)
    : started(host.runtime(), "start of the all-reduce"), host_(host), runtime_(host.runtime()), options_(options),
      metrics_(metrics), tensors_(std::move(tensors)), setup_(std::move(setup)) {}

std::optional<std::size_t> AllReduce::index_of(const PeerId& peer) const {
  const auto& peers = setup_.group.peers;
  const auto at = std::find(peers.begin(), peers.end(), peer);
  return at == peers.end() ? std::nullopt : std::optional(static_cast<std::size_t>(at - peers.begin()));
}

Result<> AllReduce::prepare() {
  const auto own = index_of(host_.id());
  if (!own) return Error(Errc::bad_partition, "we are not in the group");
  own_index_ = *own;
  std::vector<PartedTensor> parted;
  std::uint64_t total = 0;
  for (const auto& tensor : tensors_) {
    parted.push_back({tensor.values.size(), 4 * codec::compression_ratio(options_.codec, tensor.schema_dtype)});
    total += tensor.values.size();
  }
  auto fractions = peer_fractions(total, setup_.members);
  if (!fractions) return fractions.error();
  fractions_ = std::move(*fractions);
  parts_by_owner_.resize(setup_.group.peers.size());
  for (const Part& part : cut_into_parts(parted, options_.part_size_bytes, fractions_)) parts_by_owner_[part.owner].push_back(part);
  std::vector<std::size_t> lengths;
  for (const Part& part : parts_by_owner_[own_index_]) lengths.push_back(part.length);
  reducer_ = std::make_unique<Reducer>(runtime_, std::move(lengths), setup_.group.peers.size());
  return ok();
}

void AllReduce::cancel() {
  cancelled_ = true;
  started.set();
  if (reducer_) reducer_->cancel();
}

void AllReduce::ban(std::size_t sender, const Error& why) {
  if (!reducer_ || reducer_->banned(sender) || reducer_->finished()) return;
  log::info("averaging", "leaving {} out of the round: {}", setup_.group.peers[sender], why);
  metrics_.senders_banned.increment();
  reducer_->ban(sender);
}

// ---- Our side of each stream

Task<Result<RoundResult>> AllReduce::run() {
  RoundResult result;
  result.group = setup_.members;
  for (const auto& parts : parts_by_owner_) result.parts_total += parts.size();
  started.set();
  TaskGroup tasks(runtime_, "all-reduce");
  TaskGroup watch(runtime_, "all-reduce watch");
  if (options_.sender_timeout > 0s) watch.spawn(ban_absent(*this), "absent senders");
  std::vector<std::size_t> failed(setup_.group.peers.size(), 0);
  for (std::size_t peer = 0; peer < failed.size(); ++peer) {
    if (peer == own_index_) {
      tasks.spawn(reduce_own(*this), "own parts");
    } else if (!parts_by_owner_[peer].empty()) {
      tasks.spawn(exchange_with(*this, peer, failed[peer]), "exchange with a reducer");
    }
  }
  co_await tasks.join();
  if (cancelled_) co_return Error(Errc::round_cancelled);
  for (std::size_t count : failed) result.parts_failed += count;
  result.bytes_sent = sent_;
  result.bytes_received = received_;
  metrics_.bytes_sent.increment(static_cast<double>(sent_));
  metrics_.bytes_received.increment(static_cast<double>(received_));
  co_return result;
}

/// Our contribution to our own parts, and their averages into our tensors.
Task<void> AllReduce::reduce_own(AllReduce& self) {
  const auto& parts = self.parts_by_owner_[self.own_index_];
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto own = self.values(parts[i]);
    const double weight = self.setup_.weight;
    auto added = co_await self.reducer_->contribute(self.own_index_, i, weight, [own, weight](std::span<float> into) -> Result<> {
      for (std::size_t k = 0; k < into.size(); ++k) into[k] += static_cast<float>(weight) * own[k];
      return ok();
    });
    if (!added) co_return;
    auto average = co_await self.reducer_->average(i);
    if (!average) co_return;
    if (!*average) continue;
    const auto alpha = static_cast<float>(self.options_.averaging_alpha);
    for (std::size_t k = 0; k < own.size(); ++k) own[k] += alpha * ((**average)[k] - own[k]);
  }
}

Task<void> AllReduce::send_parts(AllReduce& self, rpc::ClientStream& call, std::size_t peer, Result<>& result) {
  const auto& parts = self.parts_by_owner_[peer];
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Slice buffer = codec::encode(self.options_.codec, self.values(parts[i]));
    const Envelope envelope = envelope_part(i == 0 ? kPartForAveraging : 0, i == 0 ? self.group_id() : std::string(), buffer.size(),
                                            parts[i].length, self.options_.codec, self.setup_.weight);
    result = co_await send_enveloped(call, envelope, buffer, limit(self.runtime_, self.options_.reducer_timeout));
    if (!result) co_return;
    self.sent_ += buffer.size();
  }
  result = co_await call.finish(limit(self.runtime_, self.options_.reducer_timeout));
}

/// Sends a reducer its parts and applies the deltas it answers. On failure the remaining parts keep their local values.
Task<void> AllReduce::exchange_with(AllReduce& self, std::size_t peer, std::size_t& failed) {
  const auto& parts = self.parts_by_owner_[peer];
  const PeerId& id = self.setup_.group.peers[peer];
  failed = parts.size();
  Result<> sending = ok();
  Error why;
  auto call = co_await rpc::open_call(self.host_, id, self.setup_.protocol, limit(self.runtime_, self.options_.reducer_timeout));
  if (call) {
    TaskGroup sender(self.runtime_, "parts to a reducer");
    sender.spawn(send_parts(self, **call, peer, sending), "parts to a reducer");
    std::vector<float> delta;
    const auto alpha = static_cast<float>(self.options_.averaging_alpha);
    while (failed > 0) {
      auto reply = co_await (*call)->receive(limit(self.runtime_, self.options_.reducer_timeout));
      if (!reply || !*reply) {
        why = reply ? Error(cohive::Errc::end_of_stream, id, "not all parts were returned") : reply.error();
        break;
      }
      const Part& part = parts[parts.size() - failed];
      auto message = parse_part(**reply);
      if (!message || message->code != kAveragedPart || !message->tensor) {
        why = Error(Errc::bad_partition, id, message ? "code " + std::to_string(message->code) : message.error().message());
        break;
      }
      const auto codec = codec::codec_from_wire(message->tensor->compression);
      const auto dtype = codec::dtype_from_name(message->tensor->dtype);
      delta.resize(part.length);
      auto decoded = codec && dtype ? codec::decode(*codec, *dtype, message->tensor->buffer, delta)
                                    : Result<>(Error(cohive::Errc::malformed, id, "codec or dtype of a part"));
      const bool finite = decoded && std::all_of(delta.begin(), delta.end(), [](float v) { return std::isfinite(v); });
      if (!finite) {
        why = decoded ? Error(cohive::Errc::malformed, id, "not a finite number in an averaged part") : decoded.error().with_peer(id);
        break;
      }
      const auto own = self.values(part);
      for (std::size_t k = 0; k < own.size(); ++k) own[k] += alpha * delta[k];
      self.received_ += message->tensor->buffer.size();
      --failed;
    }
  } else {
    why = call.error();
  }
  if (failed > 0) log::warn("averaging", "{} of {} parts keep local values: {}", failed, parts.size(), why);
}

Task<void> AllReduce::ban_absent(AllReduce& self) {
  co_await self.runtime_.sleep_for(self.options_.sender_timeout);
  for (std::size_t i = 0; i < self.setup_.group.peers.size(); ++i)
    if (i != self.own_index_ && !self.attached_.contains(i))
      self.ban(i, Error(cohive::Errc::timeout, self.setup_.group.peers[i], "it never sent a part"));
}

// ---- The other side: serving a sender

Result<> AllReduce::check_part(const PartMessage& message, std::size_t index) const {
  const auto& parts = parts_by_owner_[own_index_];
  if (index >= parts.size()) return Error(Errc::bad_partition, "more parts than expected");
  if (!message.tensor) return Error(Errc::bad_partition, "a message without a part");
  const auto count = codec::element_count(message.tensor->shape);
  if (!count || *count != parts[index].length)
    return Error(Errc::bad_partition, "part of " + std::to_string(count.value_or(0)) + " values where " + std::to_string(parts[index].length) + " belong");
  if (!std::isfinite(message.weight) || message.weight < 0) return Error(Errc::bad_partition, "bad weight");
  return ok();
}

/// Answers part `index` once it is averaged, in the codec of the sender's part, relative to what it sent.
Task<Result<>> AllReduce::reply(AllReduce& self, rpc::ServerStream& stream, std::vector<Slice>& messages, std::size_t index) {
  auto average = co_await self.reducer_->average(index);
  if (!average) co_return average.error();
  const auto message = parse_part(messages[index]).value();
  const auto codec = *codec::codec_from_wire(message.tensor->compression);
  const auto dtype = *codec::dtype_from_name(message.tensor->dtype);
  std::vector<float> base(self.parts_by_owner_[self.own_index_][index].length);
  if (auto decoded = codec::decode(codec, dtype, message.tensor->buffer, base); !decoded) co_return decoded;
  const Slice buffer = codec::encode_difference(codec, *average ? **average : base, base);
  messages[index] = Slice();  // no longer needed
  const Envelope envelope = envelope_part(kAveragedPart, {}, buffer.size(), base.size(), codec, 0);
  auto sent = co_await send_enveloped(stream, envelope, buffer, limit(self.runtime_, self.options_.reducer_timeout));
  if (sent) self.sent_ += buffer.size();
  co_return sent;
}

Task<Result<>> AllReduce::serve(std::shared_ptr<AllReduce> shared, rpc::ServerStream& stream, Slice first) {
  AllReduce& self = *shared;
  const auto sender = self.index_of(stream.peer());
  if (!sender || *sender == self.own_index_) co_return Error(Errc::bad_partition, stream.peer(), "not in this group");
  co_await self.started.wait();
  if (self.cancelled_) co_return Error(Errc::round_cancelled);
  if (!self.attached_.insert(*sender).second) co_return Error(Errc::bad_partition, stream.peer(), "second stream of one sender");
  // Whatever way this ends, nobody waits for this sender any more.
  struct Leave {
    std::shared_ptr<AllReduce> round;
    std::size_t sender;
    ~Leave() { round->ban(sender, Error(cohive::Errc::end_of_stream, round->setup_.group.peers[sender], "its stream ended early")); }
  } leave{shared, *sender};

  const std::size_t count = self.parts_by_owner_[self.own_index_].size();
  const bool reply_at_end = self.fractions_[*sender] == 0;  // such senders read nothing before they have sent all
  std::vector<Slice> messages(count);
  Channel<std::size_t> ready(self.runtime_, count + 1, "averaged parts");
  Result<> replies = ok();
  auto replying = [](AllReduce& round, rpc::ServerStream& to, std::vector<Slice>& kept, Channel<std::size_t>& queue, Result<>& out) -> Task<void> {
    while (auto index = co_await queue.receive()) {
      out = co_await reply(round, to, kept, *index);
      if (!out) co_return;
    }
  };
  TaskGroup replier(self.runtime_, "replies to a sender");
  if (!reply_at_end) replier.spawn(replying(self, stream, messages, ready, replies), "replies to a sender");

  Slice record = std::move(first);
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) {
      auto next = co_await stream.receive(limit(self.runtime_, self.options_.sender_timeout));
      if (!next) co_return next.error();
      if (!*next) co_return Error(Errc::bad_partition, stream.peer(), "parts are missing");
      record = std::move(**next);
    }
    auto message = parse_part(record);
    if (!message) co_return message.error();
    if (auto fits = self.check_part(*message, i); !fits) co_return fits.error().with_peer(stream.peer());
    const auto codec = codec::codec_from_wire(message->tensor->compression);
    const auto dtype = codec::dtype_from_name(message->tensor->dtype);
    if (!codec || !dtype) co_return Error(Errc::bad_partition, stream.peer(), "codec or dtype of a part");
    messages[i] = record;
    self.received_ += message->tensor->buffer.size();
    const auto weight = message->weight;
    const TensorView part = *message->tensor;
    auto added = co_await self.reducer_->contribute(*sender, i, weight, [&](std::span<float> into) -> Result<> {
      std::vector<float> values(into.size());
      if (auto decoded = codec::decode(*codec, *dtype, part.buffer, values); !decoded) return decoded;
      // One NaN would reach everybody: such a part counts as none.
      if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }))
        return Error(cohive::Errc::malformed, stream.peer(), "not a finite number in a part");
      for (std::size_t k = 0; k < into.size(); ++k) into[k] += static_cast<float>(weight) * values[k];
      return ok();
    });
    if (!added) co_return added.error().with_peer(stream.peer());
    ready.try_send(i);
  }
  auto end = co_await stream.receive(limit(self.runtime_, self.options_.sender_timeout));
  if (!end) co_return end.error();
  if (*end) co_return Error(Errc::bad_partition, stream.peer(), "more parts than expected");
  ready.close();
  if (reply_at_end) replier.spawn(replying(self, stream, messages, ready, replies), "replies to a client");
  co_await replier.join();
  co_return replies;
}

}  // namespace cohive::averaging
