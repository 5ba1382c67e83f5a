// Finding donors of the state: the best that peers have declared, those that hold the same bytes beside it, the next
// ones when they fail. Source: docs/wire/hivemind.md, sections 6.2 and 6.9; state_pieces.hpp.
#pragma once

#include <utility>
#include <vector>

#include "cohive/dht/dht.hpp"
#include "state_transfer.hpp"

namespace cohive::averaging {

struct DownloadSetup {
  std::string declared_under;                    ///< DHT key
  std::string protocol;                          ///< of rpc_download_state
  PieceSource pieces;                            ///< the same among cohive peers
  double max_priority;                           ///< that is believed
  double min_priority;                           ///< of donors that are asked
  std::vector<PeerId> without;                   ///< not asked
  std::vector<PeerId> asleep;                    ///< asked last, and not waited for
  std::vector<std::pair<PeerId, double>> known;  ///< asked beside the declared ones, and their priorities
  std::vector<codec::Tensor> last;               ///< see DownloadOptions
};

/// Lets the donors vote (donor_vote.hpp), and asks them in that order, else that of their priority; when all have
/// failed, those declared by then once more. The state is always that of one donor: a donor of the same bytes may help
/// it or go on where it stopped, any other begins anew. The error is that of the last donor; no_donor at once when no
/// peer shares a state.
Task<Result<DownloadedState>> download_from_donors(Dht& dht, DownloadSetup setup, DownloadReport& report,
                                                   Deadline deadline);

}  // namespace cohive::averaging
