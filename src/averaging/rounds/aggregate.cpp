// The owner's side of the exchange: receives a sender's parts, adds them up, answers with what the average differs by.
#include <algorithm>

#include "all_reduce.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/averaging.pb.h"
#include "p2p/detail/peer_account.hpp"
#include "receive_while_moving.hpp"
#include "sent_part.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kInFlightBytes = 32 << 20;  // parts received and not yet answered, over all senders
constexpr std::size_t kMaxInFlight = 8;           // of one sender
constexpr Duration kPartRefusalTimeout = 5s;

}  // namespace

Task<Result<>> send_code(rpc::ServerStream& stream, int code, Deadline deadline) {
  const Envelope envelope = envelope_code(code);
  co_return co_await stream.send(as_bytes(envelope.head), deadline);
}

/// A sender that reads no replies is not read either, once this many wait for it.
std::size_t AllReduce::replies_in_flight(std::size_t sender) const {
  if (setup_.fractions[sender] == 0)
    return std::max<std::size_t>(1, own_parts().size());  // it reads after it has sent everything
  const std::size_t each = std::max<std::size_t>(1, options_.part_size_bytes * members_.size());
  return std::clamp<std::size_t>(kInFlightBytes / each, 1, kMaxInFlight);
}

Task<Result<>> AllReduce::serve(std::shared_ptr<AllReduce> shared, rpc::ServerStream& stream, Slice first,
                                TimePoint arrival) {
  AllReduce& self = *shared;
  const auto sender = self.setup_.group->index_of(stream.peer());
  if (!sender || *sender == self.setup_.own_index)
    co_return Error(Errc::bad_partition, stream.peer(), "not in this group");
  const auto refuse_cancelled = [&] {
    return send_code(stream, proto::CANCELLED, self.runtime_.after(kPartRefusalTimeout));
  };
  if (self.cancelled_) co_return co_await refuse_cancelled();
  auto& state = self.members_[*sender].stream;
  if (state != MemberState::Stream::none)
    co_return Error(Errc::bad_partition, stream.peer(), "second stream of one sender");
  state = MemberState::Stream::open;
  self.traffic(*sender).arrived(arrival);
  // Whatever way this ends, this sender is not waited for any more.
  Error why(cohive::Errc::end_of_stream, stream.peer(), "its stream ended early");
  const auto leave = on_exit([&shared, &sender, &why] { shared->ban(*sender, why); });

  const bool reply_at_end = self.setup_.fractions[*sender] == 0;
  const std::size_t in_flight = self.replies_in_flight(*sender);
  Channel<Reply> replies(self.runtime_, in_flight, "replies to a sender");
  Channel<Reply> made(self.runtime_, in_flight, "answers to a client");
  Result<> outcome = ok();
  Nursery replier(self.runtime_, "replies to a sender");
  if (reply_at_end)
    replier.spawn(make_answers(self, *sender, replies, made, outcome), "answers to a client");
  else
    replier.spawn(send_replies(self, stream, *sender, replies, outcome), "replies to a sender");
  auto received = co_await receive_parts(self, stream, *sender, std::move(first), replies);
  replies.close();
  if (!received) {
    why = received.error().with_peer(stream.peer());
    self.ban(*sender, why);
    if (!reply_at_end) co_await replier.join();  // replies already due are sent
    if (self.cancelled_) co_return co_await refuse_cancelled();
    co_return Error(why);  // a copy: the end of this scope reads it, too
  }
  state = MemberState::Stream::complete;
  if (reply_at_end) replier.spawn(send_replies(self, stream, *sender, made, outcome), "replies to a client");
  co_await replier.join();
  if (!outcome && self.cancelled_) co_return co_await refuse_cancelled();
  co_return outcome;
}

Task<Result<>> AllReduce::receive_parts(AllReduce& self, rpc::ServerStream& stream, std::size_t sender, Slice record,
                                        Channel<Reply>& replies) {
  for (std::size_t i = 0; i < self.own_parts().size(); ++i) {
    if (i > 0) {
      const TimePoint begin = self.runtime_.now();
      auto next = co_await receive_while_moving(self.runtime_, stream, self.setup_.sender_timeout);
      if (!next) co_return next.error();
      if (!*next) co_return Error(cohive::Errc::end_of_stream, "parts are missing");  // it has given its round up
      self.traffic(sender).waited_for_part(self.runtime_.now() - begin);
      record = std::move(**next);
    }
    auto reply = co_await self.take_part(sender, i, std::exchange(record, {}));
    if (!reply) co_return reply.error();
    if (!co_await replies.send(std::move(*reply))) co_return Error(cohive::Errc::closed, "it reads no replies");
  }
  auto end = co_await stream.receive(timeout_after(self.runtime_, self.setup_.sender_timeout));
  if (!end) co_return end.error();
  if (*end) co_return Error(Errc::bad_partition, "more parts than expected");
  co_return ok();
}

/// Adds a part to its sum. A part counts as filled by its sender, which is left out of the round where there is no
/// room, until it has been added; until its answer has been sent where it is needed to make that, or as a vote, or to
/// be shown to other members. Codecs with error feedback lose much on purpose, and their senders make up for it in
/// later rounds. A difference would leave the loss in the sender's tensor as well, so they are answered with the
/// average itself, also in groups without one average for all.
Task<Result<AllReduce::Reply>> AllReduce::take_part(std::size_t sender, std::size_t index, Slice record) {
  const Part& part = own_parts()[index];
  auto message = parse_part(record);
  if (!message) co_return message.error();
  if (index == 0 && message->code != proto::PART_FOR_AVERAGING)
    co_return Error(Errc::bad_partition, "code " + std::to_string(message->code));
  if (!is_weight(message->weight)) co_return Error(Errc::bad_partition, "bad weight");
  // A member whose own values are not finite sends none: an honest one, whose training has gone wrong.
  if (message->tensor && part.length > 0 && codec::element_count(message->tensor->shape) == 0)
    co_return Error(Errc::not_finite, "a part without values");
  auto encoded = encoded_part(*message, std::move(record), part.length, setup_.group->agreed_codecs);
  if (!encoded) co_return encoded.error();
  count_received(sender, encoded->buffer.size());
  auto sent = std::make_shared<EncodedPart>(std::move(*encoded));
  Reply reply{.index = index, .memory = p2p::charge_for(host_, peer(sender))};
  if (!reply.memory.add(sent->record.size()))
    co_return Error(cohive::Errc::limit_exceeded, peer(sender), "memory for its parts");
  if (!is_answered_with_average(sent->codec)) reply.part = sent;
  const bool kept = reply.part || checks_->ledger() || !std::holds_alternative<Mean>(options_.aggregation);
  if (auto taken = co_await checks_->take({sender, index}, *message, *sent); !taken) co_return taken.error();
  auto values = std::make_shared<SentPart>(sent, part.length, message->weight);
  auto sum = co_await reducer_.contribute(sender, index, message->weight, std::move(values));
  if (!sum) co_return sum.error();
  if (!kept) reply.memory.release();
  reply.sum = std::move(*sum);
  co_return reply;
}

/// Makes the answers to a client, which reads them after it has sent everything, as soon as parts are averaged: they
/// take the places of its parts, and no sums are kept until then. An average is the same for all members, but may be
/// kept for the slowest alone.
Task<void> AllReduce::make_answers(AllReduce& self, std::size_t sender, Channel<Reply>& replies, Channel<Reply>& made,
                                   Result<>& outcome) {
  while (auto reply = co_await replies.receive()) {
    const bool is_average = !reply->part;
    auto done = co_await self.reducer_.wait_for(reply->sum);
    if (done) done = co_await self.make_answer(*reply);
    if (is_average) reply->memory.release();
    if (done && is_average && !reply->memory.add(reply->answer.size()))
      done = Error(cohive::Errc::limit_exceeded, self.peer(sender), "memory for its answers");
    if (!done) {
      outcome = std::move(done);
      break;
    }
    if (!co_await made.send(std::move(*reply))) break;
  }
  replies.close();
  made.close();
}

/// Answers each part once it is averaged: with the average, or relative to what the sender sent, in the codec of its
/// part.
Task<void> AllReduce::send_replies(AllReduce& self, rpc::ServerStream& stream, std::size_t sender,
                                   Channel<Reply>& replies, Result<>& outcome) {
  struct Answering {
    AllReduce& self;
    std::size_t sender;
    Answering(AllReduce& s, std::size_t to) : self(s), sender(to) { self.answering_.insert(sender); }
    ~Answering() {
      self.answering_.erase(sender);
      ++self.members_[sender].replies;
      self.answered_.notify_all();
    }
  };
  while (auto reply = co_await replies.receive()) {
    auto done = co_await self.reducer_.wait_for(reply->sum);
    if (done) {
      const Answering answering(self, sender);
      done = co_await self.send_reply(stream, sender, std::move(*reply));
    }
    if (!done) {
      outcome = std::move(done);
      break;
    }
  }
  replies.close();
}

/// Makes the answer to a part that is averaged, unless it is there.
Task<Result<>> AllReduce::make_answer(Reply& reply) {
  const PartSumPtr sum = std::exchange(reply.sum, nullptr);
  if (!sum) co_return ok();
  const auto part = std::exchange(reply.part, nullptr);
  const codec::Codec codec = part ? part->codec : answer_codec_of(own_parts()[reply.index]).codec;
  const std::string transcript_digest = checks_->transcript_digest(reply.index, *sum);
  // No average: no change, which as an average is an empty part.
  const std::size_t length = sum->length(), sent = part || sum->has_average ? length : 0;
  if (part) {
    auto work = [part, sum, length] { return difference_to(sum->average(), *part, length); };
    Result<Slice> answer = Slice();
    if (length > inline_values())
      answer = co_await runtime_.offload(std::move(work));
    else
      answer = work();
    if (!answer) co_return answer.error();
    reply.answer = std::move(*answer);
  } else if (sum->encoded) {
    reply.answer = sum->encoded->record;
  }
  reply.envelope = envelope_part(proto::AVERAGED_PART, {}, reply.answer.size(), sent, static_cast<int>(codec), 0);
  if (!transcript_digest.empty()) append_transcript_digest(reply.envelope, transcript_digest);
  co_return ok();
}

Task<Result<>> AllReduce::send_reply(rpc::ServerStream& stream, std::size_t sender, Reply reply) {
  CO_TRY(co_await make_answer(reply));
  const ByteView pieces[] = {as_bytes(reply.envelope.head), reply.answer.view(), as_bytes(reply.envelope.tail)};
  const TimePoint begin = runtime_.now();
  auto done = co_await stream.send_while_moving(pieces, setup_.reducer_timeout);
  if (done) count_sent(sender, reply.answer.size(), begin);
  co_return done;
}

}  // namespace cohive::averaging
