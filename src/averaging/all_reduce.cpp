#include "all_reduce.hpp"

#include <algorithm>
#include <cmath>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kDialLimit = 10s;      // for a call to a member; it was alive a moment ago
constexpr Duration kWatchPeriod = 500ms;  // between two looks at who has gone
constexpr Duration kLostGrace = 3s;       // for a member to come back after its connection broke
constexpr std::size_t kEncodedAhead = 2;  // parts encoded before the one being sent is through

/// Runs `work` on the pool when it goes through many values.
template <class Work>
Task<std::invoke_result_t<Work&>> compute(Runtime& runtime, std::size_t values, Work work) {
  if (values > inline_values()) co_return co_await runtime.offload(std::move(work));
  co_return work();
}

BanReason ban_reason(const std::error_code& code) {
  if (code == Errc::not_finite) return BanReason::not_finite;
  if (code == Errc::bad_partition || code == cohive::Errc::malformed) return BanReason::malformed;
  return code == cohive::Errc::timeout ? BanReason::silent : BanReason::gone;
}

}  // namespace

/// What we send of a part, for work on other threads: its values, and with error feedback what is owed of them.
struct AllReduce::OwnPart {
  std::shared_ptr<TensorLease> lease;
  std::span<float> values;
  ResidualsPtr residuals;
  std::optional<codec::CodecSpec> agreed;
  std::size_t tensor = 0, offset = 0;

  codec::Residuals* debt() const { return agreed ? &(*residuals)[tensor] : nullptr; }
  /// False when the round is over.
  bool read(std::size_t first, std::span<float> out) const {
    return lease->use([&] {
      const std::span<const float> from = values.subspan(first, out.size());
      debt() ? debt()->correct(offset + first, from, out) : static_cast<void>(std::ranges::copy(from, out.begin()));
    });
  }
};

AllReduce::OwnPart AllReduce::own_part(const Part& part) const {
  return {lease_, values(part), setup_.residuals, agreed_[part.tensor], part.tensor, part.offset};
}

AllReduce::AllReduce(p2p::Host& host, const AveragerOptions& options, const AveragingMetrics& metrics,
                     std::vector<AveragedTensor> tensors, Setup setup)
    : started(host.runtime(), "start of the all-reduce"),
      host_(host),
      runtime_(host.runtime()),
      options_(options),
      metrics_(metrics),
      tensors_(std::move(tensors)),
      setup_(std::move(setup)),
      answered_(host.runtime(), "replies that go first") {}

Task<Result<>> AllReduce::prepare() {
  const auto own = setup_.group.index_of(host_.id());
  if (!own) co_return Error(Errc::bad_partition, "we are not in the group");
  own_index_ = *own;
  std::vector<PartedTensor> parted;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const AveragedTensor& tensor = tensors_[i];
    const codec::CompressionInfo info{tensor.key.value_or(i), tensor.shape, tensor.schema_dtype, tensor.role};
    const auto codec = options_.codec.choose(info);
    if (!codec) co_return codec.error();
    codecs_.push_back(*codec);
    auto& agreed = agreed_.emplace_back();
    if (options_.agreed_codec) {
      const auto wanted = options_.agreed_codec->choose(info);
      if (!wanted) co_return wanted.error();
      if (setup_.group.agreed_codecs.contains(wanted->codec)) agreed = *wanted;
    }
    const auto width = static_cast<double>(codec::size_of(tensor.schema_dtype));
    parted.push_back({tensor.values.size(), width * codec::compression_ratio(codec->codec, tensor.schema_dtype)});
    total += tensor.values.size();
  }
  auto divide = [total, members = setup_.group.members, least = options_.min_vector_size] {
    return peer_fractions(total, members, least);
  };
  // Bandwidths make a linear program, which takes its time in a large group.
  const bool heavy = std::any_of(setup_.group.members.begin(), setup_.group.members.end(),
                                 [](const auto& m) { return m.bandwidth.has_value(); });
  auto fractions = heavy ? co_await runtime_.offload(std::move(divide)) : divide();
  if (!fractions) co_return fractions.error();
  fractions_ = std::move(*fractions);
  parts_by_owner_.resize(setup_.group.members.size());
  for (const Part& part : cut_into_parts(parted, options_.part_size_bytes, fractions_))
    parts_by_owner_[part.owner].push_back(part);
  std::vector<std::size_t> lengths;
  for (const Part& part : parts_by_owner_[own_index_]) lengths.push_back(part.length);
  reducer_ = std::make_unique<Reducer>(runtime_, std::move(lengths), setup_.group.members.size(), own_index_,
                                       options_.aggregation);
  co_return ok();
}

/// Of one part as it is sent: some codecs have nothing to say about an empty one.
codec::Codec AllReduce::codec_of(const Part& part) const {
  return codec::codec_for(codecs_[part.tensor].codec, codec::DType::float32, {static_cast<std::uint32_t>(part.length)});
}

void AllReduce::count_sent(std::size_t bytes) {
  sent_ += bytes;
  metrics_.bytes_sent.increment(static_cast<double>(bytes));
}

void AllReduce::count_received(std::size_t bytes) {
  received_ += bytes;
  metrics_.bytes_received.increment(static_cast<double>(bytes));
}

void AllReduce::cancel() {
  cancelled_ = true;
  lease_->end();
  started.set();
  if (reducer_) reducer_->cancel();
}

void AllReduce::ban(std::size_t sender, const Error& why) {
  if (!reducer_ || cancelled_ || complete_.contains(sender) || reducer_->banned(sender) || reducer_->finished()) return;
  const BanReason reason = ban_reason(why.code());
  const auto text = fmt::format("leaving {} out of the round ({}): {}", setup_.group.members[sender].peer,
                                kBanReasons[static_cast<std::size_t>(reason)], why);
  const bool at_fault = reason == BanReason::not_finite || reason == BanReason::malformed;
  log::write(at_fault ? log::Level::warn : log::Level::info, "averaging", text);
  metrics_.senders_banned[static_cast<std::size_t>(reason)].increment();
  lost_.push_back(setup_.group.members[sender].peer);
  reducer_->ban(sender);
}

// ---- Our side of each stream

Task<Result<RoundResult>> AllReduce::run() {
  struct EndLease {
    TensorLease& lease;
    ~EndLease() { lease.end(); }
  } end_lease{*lease_};
  RoundResult result;
  result.group = setup_.group.members;
  for (const auto& parts : parts_by_owner_) result.parts_total += parts.size();
  started.set();

  std::vector<Exchange> exchanges(setup_.group.members.size());
  TaskGroup watch(runtime_, "all-reduce watch", TaskGroup::Local());
  TaskGroup tasks(runtime_, "all-reduce", TaskGroup::Local());
  if (!parts_by_owner_[own_index_].empty()) {
    watch.spawn(watch_senders(*this), "lost senders");
    tasks.spawn(reduce_own(*this), "own parts");
  }
  for (std::size_t peer = 0; peer < exchanges.size(); ++peer)
    if (peer != own_index_ && !parts_by_owner_[peer].empty())
      tasks.spawn(exchange_with(*this, peer, exchanges[peer]), "exchange with a reducer");
  co_await tasks.join();
  if (cancelled_) co_return Error(Errc::round_cancelled);

  for (std::size_t peer = 0; peer < exchanges.size(); ++peer) {
    if (!exchanges[peer].failure) continue;
    result.parts_failed += parts_by_owner_[peer].size() - exchanges[peer].applied;
    result.failed_reducers.push_back(setup_.group.members[peer].peer);
  }
  result.lost_senders = lost_;
  result.bytes_sent = sent_;
  result.bytes_received = received_;
  co_return result;
}

/// Our contribution to our own parts, and their averages into our tensors.
Task<void> AllReduce::reduce_own(AllReduce& self) {
  const auto& parts = self.parts_by_owner_[self.own_index_];
  const double weight = self.setup_.weight;
  const auto alpha = static_cast<float>(self.options_.averaging_alpha);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const OwnPart own = self.own_part(parts[i]);
    const auto moved = std::make_shared<bool>(false);
    auto sum = co_await self.reducer_->contribute(self.own_index_, i, weight, source_of(own, weight, alpha, moved));
    if (!sum) {  // our own values are not finite: others leave us out as well
      self.ban(self.own_index_, sum.error().with_peer(self.host_.id()));
      co_return;
    }
    if (!co_await self.reducer_->wait_for(*sum)) co_return;
    if (*moved || !(*sum)->has_average) continue;
    auto work = [sum = *sum, own, weight, alpha] {
      own.lease->use([&] {
        if (!own.debt()) return move_towards(sum->average(), alpha, own.values);
        move_to(sum->average(), alpha, own.values);
        if (weight > 0) own.debt()->clear(own.offset, own.values.size());  // it counted without any loss
      });
      return true;
    };
    co_await compute(self.runtime_, parts[i].length, std::move(work));
  }
}

/// \param moved  set when the values were moved to the average in the same pass
Reducer::Source AllReduce::source_of(OwnPart own, double weight, float alpha, std::shared_ptr<bool> moved) {
  auto add = [own, weight, alpha, moved](std::span<float> sum, Adding how) {
    Result<bool> added = Error(Errc::round_cancelled);
    if (own.debt()) {
      std::vector<float> corrected(own.values.size());
      return own.read(0, corrected) ? add_values(corrected, weight, sum, how) : added;
    }
    own.lease->use([&] {
      *moved = how.divisor > 0;
      added = *moved ? add_own_last(own.values, weight, how.divisor, alpha, sum, how.first)
                     : add_values(own.values, weight, sum, how);
    });
    return added;
  };
  auto open = [own]() -> Result<ReadValues> {
    bool finite = false;
    const bool there = own.lease->use([&] {
      if (!own.debt()) return void(finite = all_finite(own.values));
      std::vector<float> corrected(own.values.size());
      own.debt()->correct(own.offset, own.values, corrected);
      finite = all_finite(corrected);
    });
    if (!there) return Error(Errc::round_cancelled);
    if (!finite) return Error(Errc::not_finite);
    return [own](std::size_t first, std::span<float> out) { return own.read(first, out); };
  };
  return {std::move(add), std::move(open)};
}

/// Sends a reducer its parts and applies the deltas it answers. On failure the remaining parts keep their local values.
Task<void> AllReduce::exchange_with(AllReduce& self, std::size_t peer, Exchange& exchange) {
  const auto& parts = self.parts_by_owner_[peer];
  const PeerId& id = self.setup_.group.members[peer].peer;
  const Duration dial =
      self.options_.reducer_timeout > 0s ? std::min(kDialLimit, self.options_.reducer_timeout) : kDialLimit;
  auto call = co_await rpc::open_call(self.host_, id, self.setup_.protocol, self.runtime_.after(dial));
  if (call) {
    TaskGroup sender(self.runtime_, "parts to a reducer", TaskGroup::Local());
    sender.spawn(send_parts(self, **call, peer, exchange), "parts to a reducer");
    auto received = co_await receive_replies(self, **call, peer, exchange);
    if (!received && !exchange.failure) exchange.failure = received.error().with_peer(id);
    if (received) co_await sender.join();  // the end of the stream is still to be sent
    if (received) exchange.failure.reset();
  } else {
    exchange.failure = call.error().with_peer(id);
    self.unreachable_.insert(peer);
  }
  if (!exchange.failure) co_return;
  self.metrics_.reducers_failed.increment();
  log::warn("averaging", "{} of {} parts keep local values: {}", parts.size() - exchange.applied, parts.size(),
            *exchange.failure);
}

/// Encodes ahead of the parts being sent. Raw float32 needs none: it is sent from the tensors themselves.
Task<void> AllReduce::encode_parts(AllReduce& self, std::size_t peer, Channel<Slice>& encoded) {
  for (const Part& part : self.parts_by_owner_[peer]) {
    if (!self.agreed_[part.tensor] && self.codec_of(part) == codec::Codec::none) continue;
    auto work = [own = self.own_part(part), codec = self.codec_of(part)] {
      std::optional<Slice> buffer;
      own.lease->use([&] {
        if (!own.debt()) return void(buffer = codec::encode_finite(codec, own.values));
        std::vector<float> corrected(own.values.size());
        own.debt()->correct(own.offset, own.values, corrected);
        if (all_finite(corrected)) buffer = codec::encode(*own.agreed, corrected);
      });
      return buffer;
    };
    auto buffer = co_await compute(self.runtime_, part.length, std::move(work));
    if (!buffer || !co_await encoded.send(std::move(*buffer))) break;
  }
  encoded.close();
}

Task<void> AllReduce::send_parts(AllReduce& self, rpc::ClientStream& call, std::size_t peer, Exchange& exchange) {
  const auto& parts = self.parts_by_owner_[peer];
  Channel<Slice> encoded(self.runtime_, kEncodedAhead, "encoded parts");
  TaskGroup encoder(self.runtime_, "encoder", TaskGroup::Local());
  encoder.spawn(encode_parts(self, peer, encoded), "encoder");
  Result<> sent = ok();
  for (std::size_t i = 0; i < parts.size() && sent; ++i) {
    const std::span<const float> own = self.values(parts[i]);
    const auto agreed = self.agreed_[parts[i].tensor];
    const int compression = static_cast<int>(agreed ? agreed->codec : self.codec_of(parts[i]));
    const bool raw = compression == static_cast<int>(codec::Codec::none);
    // Replies first: who waits for one holds its part and its sum in memory.
    while (self.answering_.contains(peer)) co_await self.answered_.wait();
    const auto buffer = raw ? std::optional<Slice>(Slice()) : co_await encoded.receive();
    // Not every implementation would notice a NaN: an empty part, which all of them refuse, goes in its place.
    const bool usable = buffer && (!raw || all_finite(own));
    if (!usable) exchange.failure = Error(Errc::not_finite, self.host_.id(), "our own");
    const ByteView bytes = !usable ? ByteView() : raw ? raw_bytes(own) : buffer->view();
    const Envelope envelope =
        envelope_part(i == 0 ? kPartForAveraging : 0, i == 0 ? self.group_id() : std::string(), bytes.size(),
                      usable ? parts[i].length : 0, compression, self.setup_.weight);
    const ByteView pieces[] = {as_bytes(envelope.head), bytes, as_bytes(envelope.tail)};
    sent =
        co_await call.send(std::span<const ByteView>(pieces), limit_of(self.runtime_, self.options_.reducer_timeout));
    if (!sent || !usable) break;
    if (agreed) exchange.unanswered.push_back(*buffer);
    exchange.sent = i + 1;
    self.count_sent(bytes.size());
  }
  if (exchange.failure) co_return;
  if (sent) sent = co_await call.finish(limit_of(self.runtime_, self.options_.reducer_timeout));
  // The replies tell more about a failure than the sending does.
  if (!sent) log::debug("averaging", "sending parts: {}", sent.error().with_peer(self.setup_.group.members[peer].peer));
}

Task<Result<>> AllReduce::receive_replies(AllReduce& self, rpc::ClientStream& call, std::size_t peer,
                                          Exchange& exchange) {
  const auto& parts = self.parts_by_owner_[peer];
  for (std::size_t& i = exchange.applied; i < parts.size(); ++i) {
    auto reply = co_await call.receive(limit_of(self.runtime_, self.options_.reducer_timeout));
    if (!reply) co_return reply.error();
    if (!*reply) co_return Error(cohive::Errc::end_of_stream, "not all parts were returned");
    auto message = parse_part(**reply);
    if (!message) co_return message.error();
    if (message->code == kCancelled ||
        message->code == kBadGroupId)  // it has given the round up and sends no parts either
      self.ban(peer, Error(Errc::round_cancelled, self.setup_.group.members[peer].peer));
    if (message->code != kAveragedPart) co_return Error(Errc::refused, "code " + std::to_string(message->code));
    // A part may be changed only when it has left: it is sent from the tensor itself.
    if (exchange.sent <= i) co_return Error(Errc::bad_partition, "an average of a part that was not sent");
    Slice delivered;
    const bool average = self.agreed_[parts[i].tensor].has_value();
    if (average) {
      delivered = std::move(exchange.unanswered.front());
      exchange.unanswered.pop_front();
      if (parts[i].length > 0 && message->tensor && codec::element_count(message->tensor->shape) == 0) continue;
    }
    auto answer = encoded_part(*message, std::move(**reply), parts[i].length);
    if (!answer) co_return answer.error();
    self.count_received(answer->buffer.size());
    auto applied = average ? co_await self.apply_average(parts[i], std::move(*answer), std::move(delivered))
                           : co_await self.apply(std::move(*answer), self.values(parts[i]));
    if (!applied) co_return applied;
  }
  co_return ok();
}

/// The average of a part that we sent with error feedback: what was lost of it is owed from now on.
Task<Result<>> AllReduce::apply_average(const Part& part, EncodedPart average, Slice delivered) {
  auto work = [own = own_part(part), average = std::make_shared<EncodedPart>(std::move(average)),
               delivered = std::move(delivered), counted = setup_.weight > 0,
               alpha = static_cast<float>(options_.averaging_alpha)]() -> Result<> {
    const auto values = open_part(average, own.values.size());
    if (!values) return values.error();
    Result<> applied = Error(Errc::round_cancelled);
    own.lease->use([&] {
      applied = counted ? own.debt()->commit(own.agreed->codec, own.offset, own.values, delivered) : ok();
      if (applied) move_to(*values, alpha, own.values);
    });
    return applied;
  };
  co_return co_await compute(runtime_, part.length, std::move(work));
}

Task<Result<>> AllReduce::apply(EncodedPart delta, std::span<float> values) {
  auto work = [lease = lease_, delta = std::move(delta), values, alpha = options_.averaging_alpha] {
    Result<> applied = Error(Errc::round_cancelled);
    lease->use([&] { applied = add_difference(delta, static_cast<float>(alpha), values); });
    return applied;
  };
  co_return co_await compute(runtime_, values.size(), std::move(work));
}

/// Leaves those out who never begin to send, sooner when their connection broke.
Task<void> AllReduce::watch_senders(AllReduce& self) {
  const auto& members = self.setup_.group.members;
  const Deadline absent = limit_of(self.runtime_, self.options_.sender_timeout);
  std::set<std::size_t> seen;
  std::map<std::size_t, TimePoint> gone;
  for (;;) {
    const TimePoint now = self.runtime_.now();
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i == self.own_index_ || self.attached_.contains(i)) continue;
      if (!absent.is_never() && now >= absent.at())
        self.ban(i, Error(cohive::Errc::timeout, members[i].peer, "it never sent a part"));
      if (self.host_.connected(members[i].peer)) {
        seen.insert(i);
        gone.erase(i);
      } else if ((seen.contains(i) || self.unreachable_.contains(i)) &&
                 now - gone.try_emplace(i, now).first->second >= kLostGrace) {
        self.ban(i, Error(cohive::Errc::reset, members[i].peer, "its connection broke before it sent a part"));
      }
    }
    co_await self.runtime_.sleep_for(kWatchPeriod);
  }
}

}  // namespace cohive::averaging
