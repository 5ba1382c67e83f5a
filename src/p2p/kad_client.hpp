// Asks a peer for the addresses of others. Source: docs/wire/libp2p.md, section 9.2.
#pragma once

#include <string>
#include <vector>

#include "cohive/proto/p2p.pb.h"
#include "dialler.hpp"

namespace cohive::p2p {

inline const std::string kKadProtocol = "/ipfs/kad/1.0.0";

class KadClient {
 public:
  KadClient(Self& self, ConnectionTable& table, Dialler& dialler, AddressBook& book)
      : self_(self), table_(table), dialler_(dialler), book_(book) {}

  /// Sends one FIND_NODE. Dials the peer only by addresses that are known now, so that a lookup never starts another.
  Task<Result<proto::KadMessage>> ask(PeerId peer, std::string key, Deadline deadline);

  /// A peer that a reply names, with the addresses that the sender of the reply may name.
  struct Referral {
    PeerId peer;
    std::vector<Multiaddr> addresses;
    Multiaddr::Scope referrer;
  };
  /// Keeps the addresses of a reply as announced ones; returns the peers that it names, without ourselves.
  std::vector<Referral> learn(const PeerId& referrer, const proto::KadMessage& reply);

 private:
  Self& self_;
  ConnectionTable& table_;
  Dialler& dialler_;
  AddressBook& book_;
};

}  // namespace cohive::p2p
