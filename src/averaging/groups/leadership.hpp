// Leadership: the followers of one search, and the group that is made of them.
// Source: docs/wire/hivemind.md, section 6.5.
#pragma once

#include <map>
#include <memory>
#include <variant>

#include "cohive/averaging/group_finder.hpp"

namespace cohive::proto {
class JoinRequest;
class MessageFromLeader;
}  // namespace cohive::proto

namespace cohive::averaging {

inline constexpr std::size_t kMaxGroup = 1024;

/// A group as its leader announces it.
struct GroupAnnouncement {
  Group group;
  bool reforms = false;  ///< all members remember it
  std::string message;   ///< that tells all followers of it, as it travels: of many members it is long
};

/// A member asks for these beyond hivemind's protocol. A group has what all of its members ask for.
struct Extensions {
  codec::CodecSet codecs;    ///< that it offers
  bool reforms = false;      ///< it remembers groups
  bool caps_shares = false;  ///< see Group
  bool one_average = false;  ///< see Group

  friend Extensions operator&(const Extensions& a, const Extensions& b) {
    return {a.codecs & b.codecs, a.reforms && b.reforms, a.caps_shares && b.caps_shares,
            a.one_average && b.one_average};
  }
};

/// A peer that wants to join, while it waits for what becomes of it.
struct Follower {
  Member member;
  std::string gathered;  ///< the same as it travels
  Extensions extensions;
  double expiration = 0;  ///< until when it waits for us
  enum class Fate { waiting, grouped, disbanded } fate = Fate::waiting;
  std::shared_ptr<const GroupAnnouncement> group;
};
using FollowerPtr = std::shared_ptr<Follower>;

/// Reads a join request. Errors: gathered data that would spoil the group.
Result<FollowerPtr> follower_of(const PeerId& peer, const proto::JoinRequest& request);
/// When a follower gives up.
double patience_of(const proto::JoinRequest& request);
/// Returns the message that tells a follower what has become of it, as it travels: its group, or that it has none here.
/// \param other_leader  the peer to ask instead, where we follow one
std::shared_ptr<const std::string> final_response(const Follower& follower, const std::optional<PeerId>& other_leader);

/// Returns a digest of what all members of a group are told alike, which is part of the ids of its all-reduces: whoever
/// was told otherwise by a dishonest leader is no more than late for the others. Empty where a member may know none of
/// our extensions.
std::string view_of(const proto::MessageFromLeader& begin);

class Leadership {
 public:
  const std::map<PeerId, FollowerPtr>& followers() const { return followers_; }
  std::size_t size() const { return followers_.size(); }
  bool contains(const PeerId& peer) const { return followers_.contains(peer); }

  /// Whether the gathered data of one more fit into the message that announces the group.
  bool has_room_for(const proto::JoinRequest& request, std::size_t target_size) const;
  /// The same of their values, once those of the one more are known.
  bool has_room_for(const Follower& follower) const {
    return gathered_values_ + count_values(follower.member.data) <= kMaxGroupValues / 2;  // ours need room, too
  }
  void add(const FollowerPtr& follower);
  /// A follower is gone. False when it was no longer one.
  bool remove(const FollowerPtr& follower);
  /// When the first of them gives up; infinity without any.
  double earliest_expiration() const;

  /// Makes a group of all and ourselves. \param extensions  what we ask for
  std::shared_ptr<const GroupAnnouncement> assemble(Runtime& runtime, const Member& own, Extensions extensions);
  /// Gives all up.
  void disband();

 private:
  std::map<PeerId, FollowerPtr> followers_;
  std::size_t gathered_bytes_ = 0, gathered_values_ = 0;
};

}  // namespace cohive::averaging
