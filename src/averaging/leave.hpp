// Leaving: a peer that averages no more, or gives up the round of one group, says so to the peers that may wait for it.
// Between cohive peers only; a peer that does not know the protocol (Python) refuses it when the stream is opened, and
// is not asked again.
//   leaver -> the group's id, or an empty message for all groups, END_OF_STREAM;  member -> END_OF_STREAM
// The leaver is known by its connection: a peer can leave for itself only.
#pragma once

#include <functional>
#include <set>

#include "cohive/rpc/rpc.hpp"

namespace cohive::averaging {

class LeaveNotices {
 public:
  /// \param protocol_prefix  of the averager: "<prefix>::<class>."
  LeaveNotices(p2p::Host& host, const std::string& protocol_prefix);

  /// Calls `left` for every peer that leaves, with the group's id; empty: it averages no more.
  void serve(rpc::Server& server, std::function<void(const PeerId& peer, const std::string& group_id)> left);
  /// Tells peers, each once. Returns when all have heard of it or cannot, or at the deadline.
  Task<void> tell(std::vector<PeerId> peers, std::string group_id, Deadline deadline);

 private:
  static Task<Result<>> serve_notice(Runtime& runtime, rpc::ServerStream& stream,
                                     std::function<void(const PeerId&, const std::string&)> left);
  Task<void> tell_one(PeerId peer, std::string group_id, Deadline deadline);
  Task<Result<>> call(PeerId peer, std::string group_id, Deadline deadline);

  p2p::Host& host_;
  const std::string protocol_;
  std::set<PeerId> unaware_;  // peers that do not know the protocol
};

}  // namespace cohive::averaging
