#include "leadership.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/msgpack.hpp"
#include "cohive/proto/averaging.pb.h"

namespace cohive::averaging {
namespace {

constexpr std::size_t kMaxGathered = 8 << 20;  // of all followers: it goes into one message to each
constexpr std::size_t kGroupIdSize = 20, kViewSize = 8;

/// Tells whether answers of this group may lose some of an average, which its reducer owes from then on: it pays where
/// it reduces the same values again.
bool answers_owe(const Extensions& extensions) {
  return extensions.one_average && extensions.codecs.contains(codec::Codec::sparse2);
}

using Gathered = std::pair<const Member*, std::string>;  // with its data as they travel

/// Brings members into an order that groups keep round after round. Parts follow it, and ids that are close to each
/// other are not close in it.
void sort_by_hash(std::vector<Gathered>& members) {
  std::map<crypto::Sha256Digest, Gathered> by_hash;
  for (Gathered& member : members) by_hash.emplace(crypto::sha256(member.first->peer.bytes()), std::move(member));
  members.clear();
  for (auto& [hash, member] : by_hash) members.push_back(std::move(member));
}

}  // namespace

double patience_of(const proto::JoinRequest& request) {
  return request.expiration() == 0 ? std::numeric_limits<double>::infinity() : request.expiration();
}

Result<FollowerPtr> follower_of(const PeerId& peer, const proto::JoinRequest& request) {
  auto member = decode_gathered(peer, request.gather());
  if (!member) return member.error();
  auto follower = std::make_shared<Follower>();
  follower->member = std::move(*member);
  follower->gathered = request.gather();
  follower->extensions = {codec::CodecSet::from_text(request.codec_extensions()), request.reforms(),
                          request.caps_shares(), request.one_average()};
  follower->expiration = patience_of(request);
  return follower;
}

std::shared_ptr<const std::string> final_response(const Follower& follower, const std::optional<PeerId>& other_leader) {
  if (follower.fate == Follower::Fate::grouped) return {follower.group, &follower.group->message};
  proto::MessageFromLeader last;
  last.set_code(proto::GROUP_DISBANDED);
  if (other_leader) last.set_suggested_leader(other_leader->binary());
  return std::make_shared<const std::string>(last.SerializeAsString());
}

std::string view_of(const proto::MessageFromLeader& begin) {
  const std::string& codecs = begin.codec_extension();
  if (!begin.reforms() && !begin.caps_shares() && !begin.one_average() && codecs.empty()) return {};
  msgpack::Array told{{begin.reforms(), begin.caps_shares(), begin.one_average(), codecs}};
  for (int i = 0; i < begin.ordered_peer_ids_size(); ++i) {
    told.items.emplace_back(msgpack::Bin{begin.ordered_peer_ids(i)});
    told.items.emplace_back(msgpack::Bin{begin.gathered(i)});
  }
  const auto digest = crypto::sha256(as_bytes(msgpack::encode(std::move(told))));
  return to_string(ByteView(digest).first(kViewSize));
}

bool Leadership::has_room_for(const proto::JoinRequest& request, std::size_t target_size) const {
  const std::size_t most = target_size ? std::min(target_size, kMaxGroup) : kMaxGroup;
  return followers_.size() + 1 < most && gathered_bytes_ + request.gather().size() <= kMaxGathered;
}

void Leadership::add(const FollowerPtr& follower) {
  followers_[follower->member.peer] = follower;
  gathered_bytes_ += follower->gathered.size();
  gathered_values_ += count_values(follower->member.data);
}

bool Leadership::remove(const FollowerPtr& follower) {
  const auto at = followers_.find(follower->member.peer);
  if (at == followers_.end() || at->second != follower) return false;
  gathered_bytes_ -= follower->gathered.size();
  gathered_values_ -= count_values(follower->member.data);
  followers_.erase(at);
  return true;
}

double Leadership::earliest_expiration() const {
  double earliest = std::numeric_limits<double>::infinity();
  for (const auto& [peer, follower] : followers_) earliest = std::min(earliest, follower->expiration);
  return earliest;
}

std::shared_ptr<const GroupAnnouncement> Leadership::assemble(Runtime& runtime, const Member& own,
                                                              Extensions extensions) {
  auto assembled = std::make_shared<GroupAnnouncement>();
  Group& group = assembled->group;
  Bytes id(kGroupIdSize);
  runtime.random_bytes(id);
  group.id = to_string(id);
  group.leader = own.peer;
  std::vector<Gathered> members{{&own, encode_gathered(own)}};
  for (const auto& [peer, follower] : followers_) {
    members.emplace_back(&follower->member, follower->gathered);
    extensions = extensions & follower->extensions;
  }
  group.agreed_codecs = extensions.codecs;
  group.caps_shares = extensions.caps_shares;
  group.one_average = extensions.one_average;
  assembled->reforms = extensions.reforms;
  if (answers_owe(extensions))
    sort_by_hash(members);
  else
    std::shuffle(members.begin(), members.end(), runtime.random());
  proto::MessageFromLeader begin;
  begin.set_code(proto::BEGIN_ALLREDUCE);
  begin.set_group_id(group.id);
  begin.set_reforms(assembled->reforms);
  begin.set_caps_shares(group.caps_shares);
  begin.set_one_average(group.one_average);
  begin.set_codec_extension(group.agreed_codecs.text());
  for (auto& [member, blob] : members) {
    group.members.push_back(*member);
    begin.add_ordered_peer_ids(member->peer.binary());
    begin.add_gathered(std::move(blob));
  }
  group.view = view_of(begin);
  assembled->message = begin.SerializeAsString();
  for (const auto& [peer, follower] : followers_) {
    follower->fate = Follower::Fate::grouped;
    follower->group = assembled;
  }
  return assembled;
}

void Leadership::disband() {
  for (const auto& [peer, follower] : followers_)
    if (follower->fate == Follower::Fate::waiting) follower->fate = Follower::Fate::disbanded;
  followers_.clear();
  gathered_bytes_ = gathered_values_ = 0;
}

}  // namespace cohive::averaging
