// Kademlia peer routing, as hivemind's daemon needs it: PeerID -> addresses. Values and providers are not served.
//   client -> FIND_NODE(key);  server -> the 20 nearest peers it knows, and the target itself whenever it knows it.
// Source: libp2p wire spec, section 9; hivemind wire spec, section 0.1.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "cohive/core/crypto.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/proto/p2p.pb.h"

namespace cohive::p2p {

inline const std::string kKadProtocol = "/ipfs/kad/1.0.0";

class Routing {
 public:
  using Key = crypto::Sha256Digest;
  static constexpr std::size_t kBucketSize = 20;  // k

  explicit Routing(Host::Impl& host);

  /// A handler for kKadProtocol.
  Task<void> serve(transport::StreamPtr stream);
  /// Takes a peer that serves routing into the table once it has answered.
  void consider(const PeerId& peer);
  /// It answered just now.
  void insert(const PeerId& peer);
  void remove(const PeerId& peer);
  /// One query. Dials the peer only by addresses in hand, so that a lookup never starts another.
  Task<Result<proto::KadMessage>> ask(PeerId peer, std::string key, Deadline deadline);

  /// Somebody that a reply told of, with the addresses that its teller may tell.
  struct Told {
    PeerId peer;
    std::vector<Multiaddr> addresses;
    Multiaddr::Scope teller;
  };
  /// Keeps the addresses of a reply as hearsay; returns whom it told of, without ourselves.
  std::vector<Told> learn(const PeerId& teller, const proto::KadMessage& reply);

  /// Walks towards ourselves, so that those near us know us. One walk at a time: a host that joins through several
  /// peers at once needs no more.
  Task<void> look_up_self();
  /// Whom to ask first about `key`.
  std::vector<PeerId> seeds(const Key& key) const;
  std::size_t size() const noexcept { return table_.size(); }

  static Key key_of(const PeerId& peer) { return crypto::sha256(peer.bytes()); }
  static Key distance(const Key& a, const Key& b);

 private:
  struct Entry {
    Key key;
    std::optional<std::uint64_t> block;  // see network_block.hpp
  };
  static Task<void> check(Routing& self, PeerId peer);
  std::size_t bucket_of(const Key& key) const;
  bool is_full(std::size_t bucket) const { return bucket_sizes_[bucket] >= kBucketSize; }
  std::optional<PeerId> replaceable(std::optional<std::size_t> bucket, std::optional<std::uint64_t> block) const;
  bool make_room(std::size_t bucket, std::uint64_t block);
  /// Those of the `count` nearest that `wanted` takes.
  std::vector<PeerId> nearest(const Key& key, std::size_t count,
                              const std::function<bool(const PeerId&)>& wanted) const;
  proto::KadMessage answer(const proto::KadMessage& request, const PeerId& asker, Multiaddr::Scope asker_scope) const;

  Host::Impl& host_;
  Key self_;
  std::unordered_map<PeerId, Entry> table_;
  std::array<std::uint8_t, 257> bucket_sizes_{};
  std::set<PeerId> checking_;
  bool walking_ = false;
  bool walk_again_ = false;
};

}  // namespace cohive::p2p
