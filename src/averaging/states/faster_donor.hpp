// A look beside a slow download: would another donor be through much sooner? It is asked for a few pieces, while the
// download goes on.
//   client -> manifest request, numbers of the first pieces;  another donor -> manifest, those pieces
#pragma once

#include <deque>

#include "cohive/dht/dht.hpp"
#include "state_pieces.hpp"

namespace cohive::averaging {

struct FasterDonor {
  PeerId peer;
  std::optional<DonorCall> call;  ///< its manifest is there; none: a Python donor, of which the pace is not known
};

/// Ends once another donor has shown that its whole state would take less than half as long as what is left of the
/// download that `report` tells of; never, where none does. Each is tried once. Python donors, which cannot show it,
/// are taken where the download cannot end in time.
/// \param deadline  of the download
Task<FasterDonor> await_faster_donor(Dht& dht, std::deque<PeerId> others, PieceSource source,
                                     const DownloadReport& report, Deadline deadline);

}  // namespace cohive::averaging
