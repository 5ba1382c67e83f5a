// The follower's side of a search: asks a leader, and waits for the group that it assembles.
//   follower -> rpc_join_group JoinRequest;   leader -> ACCEPTED, later BEGIN_ALLREDUCE or GROUP_DISBANDED
// Source: docs/wire/hivemind.md, section 6.5.
#include <algorithm>

#include "averaging/wire.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/proto/averaging.pb.h"
#include "cohive/transport/errors.hpp"
#include "core/detail/bounded_parse.hpp"
#include "search.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kMaxRedirections = 8;
constexpr std::size_t kMinGroupId = 16;    // bytes: nobody guesses one, and none begins another; hivemind's have 20
constexpr std::size_t kSmallGroup = 256;   // whose bandwidths cost a sixtieth of what those of 1,024 members do
constexpr std::size_t kTimesExpected = 8;  // a member may know an eighth of its run, and not be off more
constexpr std::size_t kMaxLeaderFields = 2 * kMaxGroup + kMaxPlainFields;  // ids and gathered data of the members

/// Ends when the peer has not answered for a while. Every libp2p peer answers pings, Python ones too.
Task<Error> until_silent(p2p::Host& host, PeerId peer, Duration patience) {
  for (;;) {
    co_await host.runtime().sleep_for(patience / 2);
    auto answer = co_await p2p::ping(host, peer, host.runtime().after(patience));
    if (!answer) answer = co_await p2p::ping(host, peer, host.runtime().after(patience));  // a packet may get lost
    if (!answer && !(answer.error() == transport::Errc::protocol_not_supported)) co_return answer.error();
  }
}

Task<Result<proto::MessageFromLeader>> receive_from_leader(rpc::ClientStream& call, Deadline deadline) {
  auto reply = co_await call.receive(deadline);
  if (!reply) co_return reply.error();
  proto::MessageFromLeader message;
  if (!*reply || !parse_bounded(message, (*reply)->view(), kMaxLeaderFields))
    co_return Error(cohive::Errc::malformed, "no valid answer");
  co_return message;
}

/// The same when that may take long: a leader that falls silent is given up within seconds.
Task<Result<proto::MessageFromLeader>> await_leader(p2p::Host& host, rpc::ClientStream& call, Deadline deadline,
                                                    Duration patience) {
  auto first =
      co_await race(host.runtime(), receive_from_leader(call, deadline), until_silent(host, call.peer(), patience));
  if (first.index() == 0) co_return std::get<0>(std::move(first));
  co_return std::get<1>(std::move(first));
}

Task<Result<>> send_request(rpc::ClientStream& call, std::string request, Deadline deadline) {
  if (auto sent = co_await call.send(as_bytes(request), deadline); !sent) co_return sent;
  co_return co_await call.finish(deadline);
}

}  // namespace

/// Asks a leader, and whichever peer it sends us to.
/// \param hold  how long the first one may keep the request before it begins to look for a group itself
Task<void> Search::follow(PeerId leader, double expiration, Duration hold) {
  std::set<PeerId> asked;
  std::optional<PeerId> next = leader;
  while (next && *next != context_.own() && asked.size() < kMaxRedirections && asked.insert(*next).second &&
         context_.now() < end_) {
    const PeerId peer = *std::exchange(next, std::nullopt);
    auto group = co_await request_to_join(peer, expiration, std::exchange(hold, {}), next);
    if (found_) co_return;
    if (!group) continue;
    found_ = std::move(group);
    co_return;
  }
}

Task<std::optional<Group>> Search::request_to_join(PeerId peer, double expiration, Duration hold,
                                                   std::optional<PeerId>& redirected) {
  // Held until the first reply: meanwhile no peer becomes our follower.
  auto lock = co_await context_.lock.lock(runtime_.after(options_.request_timeout));
  if (!lock || found_) co_return std::nullopt;
  p2p::Host& host = context_.finder.dht.host();
  const Duration answer_time = hold > 0s ? options_.request_timeout / 2 : options_.request_timeout;
  const Deadline first_reply = runtime_.after(answer_time);
  auto call = co_await rpc::open_call(host, peer, context_.protocol, first_reply);
  const auto failed = [&](JoinOutcome outcome, const std::string& detail) {
    note(outcome, peer, detail);
    if (outcome == JoinOutcome::unreachable) context_.finder.dht.doubt(peer);
    return std::nullopt;
  };
  if (!call) co_return failed(JoinOutcome::unreachable, call.error().message());
  auto sent = co_await send_request(**call, join_request(expiration, hold).SerializeAsString(), first_reply);
  if (!sent) co_return failed(JoinOutcome::unreachable, sent.error().message());
  auto message = co_await receive_from_leader(**call, first_reply);
  if (message && message->code() == proto::NO_CODE && hold > 0s) {
    if (context_.known.leader() == peer) standing_ = Standing::held;
    const auto freed = on_exit([this] { standing_ = Standing::free; });
    lock.release();  // peers that join us meanwhile come along
    message = co_await await_leader(host, **call, runtime_.after(hold + answer_time), options_.request_timeout);
    lock = co_await context_.lock.lock(runtime_.after(options_.request_timeout));
  }
  if (!lock || found_) co_return std::nullopt;
  if (!message)
    co_return failed(message.error() == cohive::Errc::malformed ? JoinOutcome::refused : JoinOutcome::unreachable,
                     message.error().message());
  if (message->code() != proto::ACCEPTED) {
    if (message->code() == proto::BAD_GROUP_KEY && context_.known.leader() == peer) context_.goes_to_last(peer);
    if (message->code() == proto::NOT_LOOKING_FOR_GROUP && hold == 0s) not_looking_.push_back(peer);
    // It follows a peer itself: no need to wait until we find that one.
    if (message->code() == proto::NOT_A_LEADER) redirected = PeerId::from_bytes(as_bytes(message->suggested_leader()));
    co_return failed(JoinOutcome::refused, proto::MessageCode_Name(message->code()));
  }
  leader_ = peer;
  standing_ = Standing::following;
  const auto freed = on_exit([this] {
    standing_ = Standing::free;
    refresh_wanted_.notify_all();
    context_.changed.notify_all();
  });
  followers_.disband();  // they are sent to our leader
  context_.changed.notify_all();
  lock.release();
  co_return co_await await_group(**call, expiration, redirected);
}

Task<std::optional<Group>> Search::await_group(rpc::ClientStream& call, double expiration,
                                               std::optional<PeerId>& redirected) {
  const PeerId peer = call.peer();
  const Duration patience = from_seconds(std::max(0.0, expiration - context_.now())) + options_.request_timeout;
  auto message =
      co_await await_leader(context_.finder.dht.host(), call, runtime_.after(patience), options_.request_timeout);
  const auto failed = [&](JoinOutcome outcome, const std::string& detail) {
    note(outcome, peer, detail);
    return std::nullopt;
  };
  if (!message) {
    if (message.error() == cohive::Errc::timeout) context_.stragglers.led_in_vain(peer);
    co_return failed(JoinOutcome::lost, message.error().message());
  }
  if (message->code() == proto::BEGIN_ALLREDUCE) {
    auto group = group_from(*message, peer);
    if (!group) {
      log::warn("averaging", "not joining a group: {}", group.error());
      if (group.error() == cohive::Errc::malformed) context_.reputation.report(peer, p2p::Offence::lied);
      co_return failed(JoinOutcome::lost, group.error().message());
    }
    context_.remember(*group, message->reforms());
    note(JoinOutcome::grouped, peer, {});
    co_return std::move(*group);
  }
  if (message->code() == proto::GROUP_DISBANDED || message->code() == proto::CANCELLED)
    redirected = PeerId::from_bytes(as_bytes(message->suggested_leader()));
  co_return failed(JoinOutcome::disbanded, proto::MessageCode_Name(message->code()));
}

proto::JoinRequest Search::join_request(double expiration, Duration hold) const {
  proto::JoinRequest request;
  request.set_schema_hash(context_.finder.schema_hash);
  request.set_expiration(expiration);
  request.set_gather(encode_gathered(own_));
  request.set_client_mode(options_.mode == PeerMode::client);
  request.set_group_key(context_.keys.text());
  request.set_codec_extensions(context_.finder.offered.text());
  request.set_reforms(context_.keys.reforms());
  request.set_caps_shares(options_.caps_shares);
  request.set_one_average(options_.one_average);
  request.set_hold_ms(static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(hold).count()));
  return request;
}

Result<Group> Search::group_from(const proto::MessageFromLeader& message, const PeerId& leader) const {
  const auto bad = [&](const char* what) { return Error(cohive::Errc::malformed, leader, what); };
  const auto size = static_cast<std::size_t>(message.ordered_peer_ids_size());
  if (size < 2 || size > kMaxGroup || message.gathered_size() != message.ordered_peer_ids_size())
    return bad("size of the group");
  if (expected_members_ > 0 && size > std::max(kSmallGroup, kTimesExpected * expected_members_))
    return Error(cohive::Errc::limit_exceeded, leader, "many more members than the run has");  // as far as we know
  if (message.group_id().size() < kMinGroupId || message.group_id().size() > kMaxGroupId) return bad("group id");
  Group group{message.group_id(), {}, leader, codec::CodecSet::from_text(message.codec_extension())};
  group.caps_shares = options_.caps_shares && message.caps_shares();
  const std::string own = encode_gathered(own_);
  std::size_t values = kMaxGroupValues;
  std::set<PeerId> members;
  for (int i = 0; i < message.ordered_peer_ids_size(); ++i) {
    const auto peer = PeerId::from_bytes(as_bytes(message.ordered_peer_ids(i)));
    if (!peer || !members.insert(*peer).second) return bad("members of the group");
    // A leader that changes what we said about ourselves divides the work as it likes.
    if (*peer == context_.own() && message.gathered(i) != own) return bad("a group with forged data of ours");
    auto member = decode_gathered(*peer, message.gathered(i), &values);
    if (!member) return bad("gathered data of the group");
    group.members.push_back(std::move(*member));
  }
  if (!members.contains(context_.own())) return bad("a group without us");
  if ((group.agreed_codecs & context_.finder.offered).text() != message.codec_extension())
    return bad("a codec that we did not offer");
  group.one_average = message.one_average();
  group.view = view_of(message);
  if (group.one_average && !options_.one_average) return bad("an extension that we did not ask for");
  return group;
}

}  // namespace cohive::averaging
