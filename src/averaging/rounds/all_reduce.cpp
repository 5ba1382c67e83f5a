#include "all_reduce.hpp"

#include <algorithm>
#include <utility>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/trace.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/averaging.pb.h"
#include "core/detail/assertion.hpp"
#include "receive_while_moving.hpp"
#include "sent_part.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kDialLimit = 10s;       // for a call to a member; it was alive a moment ago
constexpr double kFraming = 1.05;          // what headers and scales of codecs add to the values
constexpr double kPlacesOfAnAnswer = 4;    // in sparse2, for each one of a part
constexpr std::size_t kPreparedAhead = 2;  // parts encoded, or contributed, before the one in progress is through

codec::CompressionInfo compression_info(const TensorInfo& tensor, std::size_t index) {
  return {tensor.key.value_or(index), tensor.shape, tensor.dtype, tensor.role};
}

double bytes_per_value(const TensorInfo& tensor, codec::Codec codec) {
  return static_cast<double>(codec::size_of(tensor.dtype)) * codec::compression_ratio(codec, tensor.dtype);
}

/// Of an answer with this code: what belongs into other messages is no answer at all.
Error no_average(int code) {
  const std::string what = "code " + std::to_string(code);
  return code < proto::NOT_DECLARED ? Error(Errc::bad_partition, what) : Error(Errc::refused, what);
}

/// Our own values of a part whose average is applied later, as all members apply it: what its encoding decodes to.
class OnlyAdded final : public Contribution {
 public:
  explicit OnlyAdded(std::shared_ptr<OwnContribution> own) : own_(std::move(own)) {}
  Result<bool> add(std::span<float> sum, Adding how) override {
    const double divisor = std::exchange(how.divisor, 0);
    TRY(const bool finite, own_->add(sum, how));
    return divisor > 0 ? divide_by_weight(sum, divisor) : finite;
  }
  Result<ReadValues> open() override { return own_->open(); }

 private:
  const std::shared_ptr<OwnContribution> own_;
};

std::vector<std::size_t> lengths_of(const std::vector<Part>& parts) {
  std::vector<std::size_t> lengths;
  for (const Part& part : parts) lengths.push_back(part.length);
  return lengths;
}

}  // namespace

// ---- Dividing the work

std::uint64_t encoded_bytes(std::span<const TensorInfo> tensors, const codec::Compression& codec) {
  double bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (const auto chosen = codec.choose(compression_info(tensors[i], i)))
      bytes += static_cast<double>(tensors[i].elements()) * bytes_per_value(tensors[i], chosen->codec);
  return static_cast<std::uint64_t>(bytes * kFraming);
}

Result<std::shared_ptr<AllReduce>> AllReduce::make(p2p::Host& host, const AveragerOptions& options,
                                                   const AveragingMetrics& metrics, Setup setup,
                                                   const TensorParts& tensors) {
  std::vector<TensorCodecs> codecs;
  std::vector<PartedTensor> parted;
  for (std::size_t i = 0; i < tensors.infos().size(); ++i) {
    const TensorInfo& tensor = tensors.infos()[i];
    const codec::CompressionInfo info = compression_info(tensor, i);
    const auto ordinary = setup.group->codecs.ordinary.value_or(options.codec).choose(info);
    if (!ordinary) return ordinary.error();
    TensorCodecs& chosen =
        codecs.emplace_back(TensorCodecs{*ordinary, std::nullopt, bytes_per_value(tensor, ordinary->codec)});
    if (options.agreed_codec && tensors.keeps_residuals() && setup.group->codecs.agreed) {
      const auto agreed = options.agreed_codec->choose(info);
      if (!agreed) return agreed.error();
      if (setup.group->agreed_codecs.contains(agreed->codec)) {
        chosen.agreed = *agreed;
        chosen.agreed->density = std::min(1.0, agreed->density * tensors.density_factor());
      }
    }
    parted.push_back({tensor.elements(), chosen.bytes_per_value});
  }
  std::vector<std::vector<Part>> parts_by_owner(setup.group->members.size());
  for (const Part& part : cut_into_parts(parted, options.part_size_bytes, setup.fractions)) {
    // hivemind gives an empty tensor to the first member even where that is a client, which nobody can call: without
    // values there is nothing to average, and nobody waits for it.
    const bool unreachable = setup.group->members[part.owner].mode == PeerMode::client;
    COHIVE_ASSERT(!unreachable || part.length == 0);
    if (!unreachable) parts_by_owner[part.owner].push_back(part);
  }
  return std::shared_ptr<AllReduce>(new AllReduce(host, options, metrics, std::move(setup), std::move(codecs),
                                                  std::move(parts_by_owner), tensors.answer_residuals()));
}

AllReduce::AllReduce(p2p::Host& host, const AveragerOptions& options, const AveragingMetrics& metrics, Setup setup,
                     std::vector<TensorCodecs> codecs, std::vector<std::vector<Part>> parts_by_owner,
                     AnswerResidualsPtr answer_residuals)
    : host_(host),
      runtime_(host.runtime()),
      options_(options),
      metrics_(metrics),
      setup_(std::move(setup)),
      codecs_(std::move(codecs)),
      parts_by_owner_(std::move(parts_by_owner)),
      answer_residuals_(std::move(answer_residuals)),
      reducer_(runtime_, lengths_of(own_parts()), setup_.group->members.size(), setup_.own_index, options_.aggregation,
               answer_codecs()),
      checks_(make_checks(
          host_, options_, metrics_,
          {setup_, setup_.terms.weight, lengths_of(own_parts()), setup_.reducer_timeout, setup_.checks_end})),
      answered_(runtime_, "replies that go first"),
      broken_(runtime_, "members that are lost"),
      members_(setup_.group->members.size()),
      began_(runtime_.now()),
      looked_(began_) {
  for (std::size_t member = 0; member < members_.size(); ++member)
    if (member != setup_.own_index) members_[member].protection = host_.protect(peer(member));
}

/// What a member gets of us at most: our values of its parts, and the results of ours.
std::uint64_t AllReduce::bytes_to(std::size_t member) const {
  double bytes = 0;
  for (const auto* parts : {&parts_by_owner_[member], &own_parts()})
    for (const Part& part : *parts) bytes += static_cast<double>(part.length) * codecs_[part.tensor].bytes_per_value;
  return static_cast<std::uint64_t>(bytes * kFraming);
}

/// Some codecs have nothing to say about an empty part.
codec::CodecSpec AllReduce::codec_of(const Part& part) const {
  const TensorCodecs& tensor = codecs_[part.tensor];
  codec::CodecSpec spec = tensor.agreed.value_or(tensor.ordinary);
  spec.codec = codec::codec_for(spec.codec, codec::DType::float32, {static_cast<std::uint32_t>(part.length)});
  return spec;
}

/// What the places of all senders have in common is too little for top_k to pay on the way back. In sparse2 an average
/// has more places than a part, and what it has no room for comes with a later one.
codec::CodecSpec AllReduce::answer_codec_of(const Part& part) const {
  codec::CodecSpec sent = codec_of(part);
  const bool sparse = sent.codec == codec::Codec::sparse2;
  if (sparse) sent.density = std::min(1.0, kPlacesOfAnAnswer * sent.density);
  const bool fits = sparse ? answer_residuals_ != nullptr : sent.codec != codec::Codec::top_k;
  if (setup_.group->one_average && fits) return sent;
  return codec::codec_for(codecs_[part.tensor].ordinary.codec, codec::DType::float32,
                          {static_cast<std::uint32_t>(part.length)});
}

std::vector<AnswerCodec> AllReduce::answer_codecs() const {
  std::vector<AnswerCodec> codecs;
  std::vector<Stretch> fed_back;
  if (setup_.group->one_average || !setup_.group->agreed_codecs.empty())
    for (const Part& part : own_parts()) {
      AnswerCodec& answer = codecs.emplace_back(AnswerCodec{answer_codec_of(part)});
      if (answer.spec.codec != codec::Codec::sparse2) continue;
      answer.residuals = answer_residuals_;
      answer.stretch = stretch_of(part);
      fed_back.push_back(answer.stretch);
    }
  if (answer_residuals_) answer_residuals_->reduce(std::move(fed_back));
  return codecs;
}

bool AllReduce::is_answered_with_average(codec::Codec codec) const {
  return setup_.group->one_average || codec::info(codec).error_feedback;
}

// ---- Our side of each stream

Task<Result<>> AllReduce::run(TensorParts& tensors, RoundReport& report) {
  std::vector<Exchange> exchanges(members_.size());
  std::size_t parts_total = 0, own_kept = own_parts().size();
  for (const auto& parts : parts_by_owner_) parts_total += parts.size();
  metrics_.round_parts.set(static_cast<double>(parts_total));
  const auto ended = on_exit([this] {
    checks_->end();
    metrics_.round_parts.set(0);
    metrics_.round_parts_done.set(0);
  });
  leave_out_the_banned();
  look_who_is_late();
  Nursery watch(runtime_, "all-reduce watch");
  Nursery own(runtime_, "all-reduce"), exchanging(runtime_, "all-reduce");
  if (!own_parts().empty()) {
    watch.spawn(watch_senders(*this), "lost senders");
    own.spawn(reduce_own(*this, tensors, own_kept), "own parts");
  }
  for (std::size_t member = 0; member < exchanges.size(); ++member)
    if (member != setup_.own_index && !parts_by_owner_[member].empty())
      exchanging.spawn(exchange_with(*this, tensors, member, exchanges[member]), "exchange with a reducer");
  co_await await_reducers(exchanging, exchanges);
  co_await own.join();
  if (cancelled_) co_return Error(Errc::round_cancelled);
  // Answers that are held count, too: that they cannot be used is another matter.
  const bool nothing = std::ranges::none_of(exchanges, [](const Exchange& exchange) { return exchange.applied > 0; });
  const bool in_vain = nothing && setup_.reducers_end.passed(runtime_.now());
  co_await apply_held(tensors, exchanges);

  report.parts_total += parts_total;
  report.parts_failed += own_kept;
  report.parts_checked += checks_->checked();
  std::vector<PeerId> failed;
  for (std::size_t member = 0; member < exchanges.size(); ++member) {
    report.parts_failed += exchanges[member].unused;
    if (!exchanges[member].failure) continue;
    const std::size_t kept = parts_by_owner_[member].size() - exchanges[member].applied;
    report.parts_failed += kept;
    if (*exchanges[member].failure == Errc::refused) report.parts_refused += kept;
    failed.push_back(peer(member));
    blame(member, *exchanges[member].failure);
  }
  name_stragglers();
  if (in_vain && !failed.empty()) co_return Error(cohive::Errc::timeout, "no part was answered");
  add_new(report.failed_reducers, failed);
  add_new(report.liars, liars_);
  add_new(report.stragglers, stragglers_);
  add_new(report.lost_senders, lost_);
  co_return ok();
}

/// Gets our contributions ready ahead of their turn; on a device that takes a while.
Task<void> AllReduce::prepare_own(AllReduce& self, TensorParts& tensors, Contributions& prepared) {
  for (const Part& part : self.own_parts()) {
    auto own = co_await self.prepare_own_part(tensors, part);
    const bool usable = own.has_value();
    if (!co_await prepared.send(std::move(own)) || !usable) break;
  }
  prepared.close();
}

/// Where members send few of their values we count with as few of ours, or else ours alone would be in the average at
/// all other places.
Task<Result<AllReduce::OwnPart>> AllReduce::prepare_own_part(TensorParts& tensors, const Part& part) {
  const codec::CodecSpec codec = codec_of(part);
  if (codec.codec != codec::Codec::sparse2) {
    CO_TRY(auto values, co_await tensors.contribute(stretch_of(part), codec, setup_.terms));
    co_return OwnPart{std::move(values), {}};
  }
  CO_TRY(auto stretch, co_await tensors.encode(stretch_of(part), codec));
  const Answer::Sent sent{codec.codec, stretch};
  co_return OwnPart{std::make_shared<OwnSentPart>(std::move(stretch), codec.codec, part.length, setup_.terms.weight),
                    sent};
}

/// Our contribution to our own parts, and their averages into our tensors.
/// \param kept  the own parts that have no average, at first all of them
Task<void> AllReduce::reduce_own(AllReduce& self, TensorParts& tensors, std::size_t& kept) {
  Contributions prepared(self.runtime_, kPreparedAhead, "own parts");
  Nursery preparing(self.runtime_, "own parts");
  preparing.spawn(prepare_own(self, tensors, prepared), "own parts");
  for (std::size_t i = 0; i < self.own_parts().size(); ++i) {
    auto own = co_await prepared.receive();
    if (!own) co_return;
    const auto averaged =
        *own ? co_await self.reduce_own_part(tensors, i, std::move(**own)) : Result<bool>(own->error());
    self.metrics_.round_parts_done.add(1);
    if (averaged) {
      if (*averaged) --kept;
      continue;
    }
    if (self.cancelled_) co_return;
    // Our own values are not finite: other members leave us out as well. They wait for the averages of our parts
    // nevertheless, and some may not have begun to send: this round and its watch go on for them.
    self.ban(self.setup_.own_index, averaged.error().with_peer(self.host_.id()));
    co_await self.reducer_.wait_for_all();
    co_return;
  }
}

/// Tells whether the part has an average.
Task<Result<bool>> AllReduce::reduce_own_part(TensorParts& tensors, std::size_t index, OwnPart own_part) {
  const auto own = std::move(own_part.values);
  const auto revoke = on_exit([&own] { own->revoke(); });
  const Part& part = own_parts()[index];
  CO_TRY(std::shared_ptr<Contribution> contribution, co_await checks_->take_own(index, own));
  if (!contribution && setup_.group->one_average) contribution = std::make_shared<OnlyAdded>(own);
  if (!contribution) contribution = own;
  auto sum = co_await reducer_.contribute(setup_.own_index, index, setup_.terms.weight, std::move(contribution));
  if (!sum) co_return sum.error();
  if (auto averaged = co_await reducer_.wait_for(*sum); !averaged) co_return averaged.error();
  if (own->applied()) co_return true;
  if (!(*sum)->has_average) co_return part.length == 0;  // nothing is kept of an empty part
  Answer answer{Answer::Form::average, (*sum)->encoded, std::nullopt};
  if (!setup_.group->one_average) {
    auto average = std::make_shared<EncodedPart>();
    average->record = (*sum)->bytes();
    average->buffer = average->record.view();
    answer.part = std::move(average);
  }
  if (codec::info(codec_of(part).codec).error_feedback) answer.sent = std::move(own_part.sent);
  CO_TRY(co_await tensors.apply(stretch_of(part), std::move(answer), setup_.terms));
  co_return true;
}

/// Sends a reducer its parts and applies the deltas it answers. On failure the remaining parts keep their local values.
Task<void> AllReduce::exchange_with(AllReduce& self, TensorParts& tensors, std::size_t member, Exchange& exchange) {
  TraceSpan span(self.runtime_, "round", "parts");
  if (span) span.note("reducer", self.peer(member).text());
  auto done = co_await self.call_reducer(tensors, member, exchange);
  exchange.ended = true;
  if (done)
    exchange.failure.reset();
  else if (!exchange.failure)
    exchange.failure = done.error().with_peer(self.peer(member));
  if (!exchange.failure) co_return;
  if (*exchange.failure == cohive::Errc::timeout) self.note_straggler(member);
  self.broken_.notify_all();
  self.metrics_.reducers_failed.increment();
  const std::size_t parts = self.parts_by_owner_[member].size();
  log::warn("averaging", "{} of {} parts keep local values: {}", parts - exchange.applied, parts, *exchange.failure);
}

/// Where a redial finds that the member's process has ended, peer routing is not asked for other addresses of it.
Task<Result<>> AllReduce::connect_reducer(AllReduce& self, std::size_t member, Deadline deadline) {
  const auto until_refused = [](AllReduce& round, std::size_t one) -> Task<void> {
    while (!round.members_[one].refused) co_await round.broken_.wait();
  };
  // A relay that would end the connection half way costs more than it brings.
  auto outcome = co_await race(
      self.runtime_,
      self.host_.ensure_capacity(self.peer(member), self.bytes_to(member), p2p::Transfer::to_peer, deadline),
      until_refused(self, member));
  if (outcome.index() == 0) co_return std::get<0>(std::move(outcome));
  co_return Error(cohive::Errc::reset, self.peer(member), "connections to it are refused");
}

Task<Result<>> AllReduce::call_reducer(TensorParts& tensors, std::size_t member, Exchange& exchange) {
  if (members_[member].left) co_return Error(Errc::members_left);
  const Duration patience = setup_.reducer_timeout;
  const Deadline dialled =
      runtime_.after(patience > 0s ? std::min(kDialLimit, patience) : kDialLimit).min(setup_.reducers_end);
  const auto room = co_await connect_reducer(*this, member, dialled);
  if (!room) {
    members_[member].unreachable = room.error() != cohive::Errc::limit_exceeded;
    co_return room.error();
  }
  auto call = co_await rpc::open_call(host_, peer(member), setup_.prefix + "rpc_aggregate_part", dialled);
  if (!call) {
    members_[member].unreachable = true;
    co_return call.error();
  }
  (*call)->hint_bulk_receive();
  Nursery sender(runtime_, "parts to a reducer");
  sender.spawn(send_parts(*this, tensors, **call, member, exchange), "parts to a reducer");
  auto received = co_await receive_replies(tensors, **call, member, exchange);
  if (received) co_await sender.join();  // the end of the stream is still to be sent
  co_return received;
}

/// The bytes of a part, and what goes along with them.
Task<Result<AllReduce::Outgoing>> AllReduce::prepare_part(TensorParts& tensors, std::size_t member, std::size_t index) {
  const Part& part = parts_by_owner_[member][index];
  const codec::CodecSpec codec = codec_of(part);
  CO_TRY(auto stretch, co_await tensors.encode(stretch_of(part), codec));
  CO_TRY(auto commitment, co_await checks_->commit({member, index}, codec.codec, stretch, part.length));
  co_return Outgoing{std::move(stretch), std::move(commitment)};
}

/// Prepares parts ahead of the one being sent.
Task<void> AllReduce::encode_parts(AllReduce& self, TensorParts& tensors, std::size_t member, EncodedParts& encoded) {
  for (std::size_t i = 0; i < self.parts_by_owner_[member].size(); ++i) {
    auto part = co_await self.prepare_part(tensors, member, i);
    const bool usable = part.has_value();
    if (!co_await encoded.send(std::move(part)) || !usable) break;
  }
  encoded.close();
}

Task<void> AllReduce::send_parts(AllReduce& self, TensorParts& tensors, rpc::ClientStream& call, std::size_t member,
                                 Exchange& exchange) {
  const auto end = on_exit([&exchange] { exchange.sending = false; });
  EncodedParts encoded(self.runtime_, kPreparedAhead, "encoded parts");
  Nursery encoder(self.runtime_, "encoder");
  encoder.spawn(encode_parts(self, tensors, member, encoded), "encoder");
  Result<> sent = ok();
  for (std::size_t i = 0; i < self.parts_by_owner_[member].size() && sent; ++i) {
    co_await self.yield_to_reply(member);
    const auto next = co_await encoded.receive();
    // Not every implementation would notice a NaN: an empty part, which all of them refuse, goes in its place.
    const bool usable = next && *next;
    if (!usable) exchange.failure = (next ? next->error() : Error(Errc::round_cancelled)).with_peer(self.host_.id());
    sent = co_await self.send_part(call, member, i, usable ? &**next : nullptr);
    if (!sent || !usable) break;
    const bool fed_back = codec::info(self.codec_of(self.parts_by_owner_[member][i]).codec).error_feedback;
    exchange.unanswered.push_back(fed_back || self.checks_->looks_at_answers() ? (*next)->stretch : EncodedStretch());
  }
  if (exchange.failure) co_return;
  if (sent) sent = co_await call.finish(timeout_after(self.runtime_, self.setup_.reducer_timeout));
  // The replies tell more about a failure than the sending does.
  if (!sent) log::debug("averaging", "sending parts: {}", sent.error().with_peer(self.peer(member)));
}

/// A member that waits for a reply holds its part and its sum in memory. It gets one reply for each part: on a slow
/// link a member that got replies alone would take us for silent.
Task<void> AllReduce::yield_to_reply(std::size_t member) {
  const std::size_t before = members_[member].replies;
  while (answering_.contains(member) && members_[member].replies == before) co_await answered_.wait();
}

/// \param outgoing  null: there are no values
Task<Result<>> AllReduce::send_part(rpc::ClientStream& call, std::size_t member, std::size_t index,
                                    const Outgoing* outgoing) {
  const Part& part = parts_by_owner_[member][index];
  const ByteView bytes = outgoing ? outgoing->stretch.bytes : ByteView();
  Envelope envelope = envelope_part(index == 0 ? proto::PART_FOR_AVERAGING : proto::NO_CODE,
                                    index == 0 ? setup_.id : std::string(), bytes.size(), outgoing ? part.length : 0,
                                    static_cast<int>(codec_of(part).codec), setup_.terms.weight);
  if (outgoing) append_commitment(envelope, outgoing->commitment);
  const ByteView pieces[] = {as_bytes(envelope.head), bytes, as_bytes(envelope.tail)};
  const TimePoint begin = runtime_.now();
  auto sent = co_await call.send_while_moving(pieces, setup_.reducer_timeout);
  if (sent && outgoing) count_sent(member, bytes.size(), begin);
  co_return sent;
}

Task<Result<>> AllReduce::receive_replies(TensorParts& tensors, rpc::ClientStream& call, std::size_t member,
                                          Exchange& exchange) {
  const auto& parts = parts_by_owner_[member];
  for (std::size_t& i = exchange.applied; i < parts.size(); ++i) {
    const TimePoint begin = runtime_.now();
    auto reply = co_await receive_while_moving(
        runtime_, call, setup_.reducer_timeout, [&exchange] { return exchange.unanswered.empty() && exchange.sending; },
        setup_.reducers_end);
    // It may have waited for others itself: nobody is blamed.
    if (!reply && setup_.reducers_end.passed(runtime_.now()))
      co_return Error(Errc::round_cancelled, "its time is over");
    if (!reply) co_return reply.error();
    if (!*reply) co_return Error(cohive::Errc::end_of_stream, "not all parts were returned");
    traffic(member).waited_for_result(runtime_.now() - begin);
    auto message = parse_part(**reply);
    if (!message) co_return message.error();
    if (message->code == proto::CANCELLED || message->code == proto::BAD_GROUP_ID)
      ban(member, Error(Errc::round_cancelled, peer(member)));  // it has given up, and sends no parts either
    if (message->code != proto::AVERAGED_PART) co_return no_average(message->code);
    // A part may be changed only when it has left: it may be sent from the tensor itself.
    if (exchange.unanswered.empty()) co_return Error(Errc::bad_partition, "an average of a part that was not sent");
    EncodedStretch sent = std::move(exchange.unanswered.front());
    exchange.unanswered.pop_front();
    if (message->tensor) count_received(member, message->tensor->buffer.size());
    CO_TRY(auto answered, read_reply(parts[i], std::move(sent), *message, std::move(**reply)));
    CO_TRY(co_await act_on(tensors, member, std::move(answered), std::move(message->transcript_digest), exchange));
    metrics_.round_parts_done.add(1);
  }
  co_return ok();
}

/// What a part was sent in decides what its answer is, where the group has no one average for all: a codec with error
/// feedback makes up for its losses in later rounds, and gets the average itself; an empty one stands for "no average".
Result<AnsweredPart> AllReduce::read_reply(const Part& part, EncodedStretch sent, const PartMessage& message,
                                           Slice record) const {
  const codec::Codec codec = codec_of(part).codec;
  const bool average = is_answered_with_average(codec);
  AnsweredPart reply{std::move(sent), codec, part.length, nullptr,
                     average ? Answer::Form::average : Answer::Form::difference};
  if (average && part.length > 0 && message.tensor && codec::element_count(message.tensor->shape) == 0) return reply;
  const codec::CodecSet agreed =
      setup_.group->one_average
          ? setup_.group->agreed_codecs & codec::CodecSet{codec::Codec::block4, codec::Codec::sparse2}
          : codec::CodecSet();
  TRY(auto encoded, encoded_part(message, std::move(record), part.length, agreed));
  reply.answer = std::make_shared<EncodedPart>(std::move(encoded));
  return reply;
}

/// Does with the next answer of a reducer what those who check it say.
Task<Result<>> AllReduce::act_on(TensorParts& tensors, std::size_t member, AnsweredPart reply,
                                 std::string transcript_digest, Exchange& exchange) {
  CO_TRY(const auto fate, co_await checks_->look_at(member, reply, std::move(transcript_digest)));
  exchange.unused += fate == RoundChecks::Fate::keep_local;
  if (fate != RoundChecks::Fate::apply) co_return ok();
  co_return co_await apply(tensors, parts_by_owner_[member][exchange.applied], std::move(reply), exchange);
}

Task<Result<>> AllReduce::apply(TensorParts& tensors, const Part& part, AnsweredPart reply, Exchange& exchange) {
  if (!reply.answer) {
    exchange.unused += part.length > 0;
    co_return ok();
  }
  Answer answer{reply.form, std::move(reply.answer), std::nullopt};
  if (codec::info(reply.sent_codec).error_feedback) answer.sent = Answer::Sent{reply.sent_codec, std::move(reply.sent)};
  co_return co_await tensors.apply(stretch_of(part), std::move(answer), setup_.terms);
}

// ---- Answers that were held

/// Applies the answers of the reducers that are believed.
Task<void> AllReduce::apply_held(TensorParts& tensors, std::vector<Exchange>& exchanges) {
  co_await checks_->settle([this](std::size_t member) {
    return !members_[member].left && !members_[member].patience && host_.connected(peer(member));
  });
  std::vector<Task<void>> work;
  for (std::size_t member = 0; member < exchanges.size(); ++member)
    if (member != setup_.own_index && !parts_by_owner_[member].empty() && checks_->held(member))
      work.push_back(apply_held_of(*this, tensors, member, exchanges[member]));
  co_await when_all(runtime_, std::move(work));
}

Task<void> AllReduce::apply_held_of(AllReduce& self, TensorParts& tensors, std::size_t member, Exchange& exchange) {
  exchange.applied = 0;
  if (auto objection = self.checks_->objection(member)) {
    if (!exchange.failure) self.metrics_.reducers_failed.increment();
    exchange.failure = std::move(objection);
    co_return;
  }
  for (const AnsweredPart& reply : *self.checks_->held(member)) {
    const auto applied = co_await self.apply(tensors, self.parts_by_owner_[member][exchange.applied], reply, exchange);
    if (!applied) {
      exchange.failure = applied.error().with_peer(self.peer(member));
      co_return;
    }
    ++exchange.applied;
  }
}

void AllReduce::count_sent(std::size_t member, std::size_t bytes, TimePoint begin) {
  traffic(member).sent(bytes, begin, runtime_.now());
  metrics_.bytes_sent.increment(static_cast<double>(bytes));
}

void AllReduce::count_received(std::size_t member, std::size_t bytes) {
  traffic(member).received(bytes, runtime_.now());
  metrics_.bytes_received.increment(static_cast<double>(bytes));
}

}  // namespace cohive::averaging
