// Notices: one record that a peer tells other peers of its groups. Between cohive peers only; a peer that does not know
// the protocol (Python) refuses it when the stream is opened, and is not told again.
//   teller -> the record, or nothing, END_OF_STREAM;  hearer -> END_OF_STREAM
// The teller is known by its connection: it can speak for itself only.
//   rpc_leave     the group's id: it gives up the round of this group; nothing: it averages no more
//   rpc_spoilers  SpoilersNotice: members that the round of a group has waited for in vain
// Source: docs/wire/extensions.md, sections 5 and 13.
#pragma once

#include <functional>
#include <set>

#include "cohive/rpc/rpc.hpp"

namespace cohive::averaging {

class Notices {
 public:
  /// What is done with a record, which is empty where none came.
  using Hear = std::function<Result<>(const PeerId& teller, ByteView record)>;

  Notices(p2p::Host& host, std::string protocol) : host_(host), protocol_(std::move(protocol)) {}

  void serve(rpc::Server& server, Hear hear);
  /// Tells peers, each once. Returns when all have heard of it or cannot, or at the deadline.
  Task<void> tell(std::vector<PeerId> peers, std::string record, Deadline deadline);

 private:
  static Task<Result<>> serve_notice(Runtime& runtime, rpc::ServerStream& stream, Hear hear);
  Task<void> tell_one(PeerId peer, std::string record, Deadline deadline);
  Task<Result<>> call(PeerId peer, std::string record, Deadline deadline);

  p2p::Host& host_;
  const std::string protocol_;
  std::set<PeerId> unaware_;  // peers that do not know the protocol
};

}  // namespace cohive::averaging
