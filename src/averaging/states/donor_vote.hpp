// Which donor of the state is believed. Any peer may declare itself a donor, with any priority and any model: before a
// state is taken, several donors tell what theirs is, and one that stands alone loses against donors that agree.
//   client -> manifest request;  donor -> manifest          (state_pieces.hpp), from several donors at once
//   client -> numbers of some pieces, drawn at random;  donor -> those pieces          unless all manifests are equal
// Peers that have averaged with this one have more say than strangers, of which there may be any number.
// Two donors agree when their roots are equal, or when most of these pieces nearly are: peers that average have nearly
// the same parameters, also an epoch apart. States whose metadata tell different times (DownloadOptions::alike) never
// do. A network of public addresses has one voice.
#pragma once

#include "cohive/dht/dht.hpp"
#include "state_pieces.hpp"

namespace cohive::averaging {

struct Election {
  /// Donors to ask: the elected one, those that agree with it, those that no fewer donors agree with, the others.
  std::vector<PeerId> order;
  std::optional<DonorCall> call;  ///< to the first of `order`
  std::vector<PeerId> outvoted;   ///< not in `order`: they agree with no other donor, while some donors agree
  std::size_t believed = 0;       ///< so many at the head of `order` the vote speaks for; 0: no two strangers agree
};

/// Asks some of the donors, which are in the order of their rank. Where no two agree, the rank decides. Python donors
/// have no manifest: they neither vote nor are outvoted.
Task<Election> elect_donor(Dht& dht, std::vector<PeerId> donors, const PieceSource& source, Deadline deadline);

}  // namespace cohive::averaging
