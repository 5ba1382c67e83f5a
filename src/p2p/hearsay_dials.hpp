// How often a host dials where others have told it to, so that no peer can aim it at a machine, or at a network of
// machines. Peers and their ports are free to invent: what counts is the host that is dialled, its network and who
// told. Source: docs/wire/libp2p.md, section 10.
#pragma once

#include <list>
#include <string>
#include <unordered_map>

#include "address_book.hpp"
#include "cohive/core/sync.hpp"
#include "core/detail/token_bucket.hpp"

namespace cohive::p2p {

/// Admits dials of announced addresses. Each costs one of the few tries that a host, its network and the peer that
/// named it have; they come back with time. A host that answers, as a peer of the swarm does, has many more, and who
/// named it gets the try back. Bounded; what was used longest ago is forgotten first.
class HearsayDials {
 public:
  explicit HearsayDials(Runtime& runtime) : runtime_(runtime), changed_(runtime, "dials of one host") {}

  /// A dial that is under way.
  class Dial {
   public:
    Dial() = default;
    Dial(Dial&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), known_(std::move(other.known_)) {}
    Dial& operator=(Dial&&) = delete;
    ~Dial();
    /// The peer that was looked for is there.
    void answered();

   private:
    friend class HearsayDials;
    Dial(HearsayDials& owner, KnownAddress known) : owner_(&owner), known_(std::move(known)) {}
    HearsayDials* owner_ = nullptr;  ///< null: nothing is counted
    KnownAddress known_;
  };
  /// Waits while others are dialling the host that has yet to answer, and while the last tries are in use.
  /// Errc::dial_backoff when too many dials have failed, or the deadline passes. Addresses that are not hearsay, and
  /// circuits, whose relay is dialled for itself, are admitted at once. The result must not outlive this object.
  Task<Result<Dial>> begin(PeerId peer, KnownAddress known, Deadline deadline);
  /// Whether begin() would fail now.
  bool refuses(const KnownAddress& known) const;

 private:
  struct Tries {
    TokenBucket left;
    int running = 0;
    bool answers = false;
    std::list<std::string>::iterator place;
  };
  struct Limit {
    double most, per_second;
  };
  Limit limit_of(const std::string& key, const Tries& tries) const;
  double level(const std::string& key) const;
  Tries& at(const std::string& key);
  static std::vector<std::string> keys_of(const KnownAddress& known);

  Runtime& runtime_;
  Condition changed_;
  std::unordered_map<std::string, Tries> tries_;
  std::list<std::string> order_;  ///< of use, the latest last
};

}  // namespace cohive::p2p
