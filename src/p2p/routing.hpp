// Kademlia peer routing, as hivemind's daemon needs it: PeerID -> addresses. Values and providers are not served.
//   client -> FIND_NODE(key);  server -> the 20 nearest peers it knows, and the target itself whenever it knows it.
// Source: libp2p wire spec, section 9; hivemind wire spec, section 0.1.
#pragma once

#include <map>
#include <vector>

#include "cohive/core/crypto.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/proto/p2p.pb.h"

namespace cohive::p2p {

inline const std::string kKadProtocol = "/ipfs/kad/1.0.0";

class Routing {
 public:
  explicit Routing(Host::Impl& host);

  /// A handler for kKadProtocol.
  Task<void> serve(transport::StreamPtr stream);
  /// Takes a peer that serves routing into the table once it has answered.
  Task<void> consider(PeerId peer);
  void remove(const PeerId& peer);

  /// Walks towards `target` until its addresses are known or nobody nearer is left.
  Task<Result<std::vector<Multiaddr>>> find(PeerId target, Deadline deadline);
  /// Walks towards ourselves, so that those near us know us.
  Task<void> look_up_self();
  std::size_t size() const noexcept { return table_.size(); }

 private:
  using Key = crypto::Sha256Digest;
  struct Lookup;
  static Key key_of(const PeerId& peer) { return crypto::sha256(peer.bytes()); }
  static Key distance(const Key& a, const Key& b);
  std::size_t bucket_of(const Key& key) const;
  std::vector<PeerId> nearest(const Key& key, std::size_t count) const;
  proto::KadMessage answer(const proto::KadMessage& request, const PeerId& asker) const;
  Task<Result<proto::KadMessage>> ask(PeerId peer, std::string key, Deadline deadline);
  Task<void> walk(PeerId target, bool stop_when_found, Deadline deadline);
  static Task<void> worker(Routing& self, std::shared_ptr<Lookup> lookup);

  Host::Impl& host_;
  Key self_;
  std::unordered_map<PeerId, Key> table_;
  std::array<std::uint8_t, 257> bucket_sizes_{};
};

}  // namespace cohive::p2p
