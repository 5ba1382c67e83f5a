// A look beside a slow download: would another donor be through much sooner? It is asked for a few pieces, while the
// download goes on.
//   client -> manifest request, numbers of the first pieces;  another donor -> manifest, those pieces
#pragma once

#include <deque>
#include <map>

#include "cohive/dht/dht.hpp"
#include "state_pieces.hpp"

namespace cohive::averaging {

struct FasterDonor {
  PeerId peer;
  std::optional<DonorCall> call;  ///< its manifest is there; none: it was tried before, or is a Python donor
};

/// How many seconds the whole state of a donor takes, as a trial or a download from it has shown.
using DonorPaces = std::map<PeerId, double>;

/// Ends once another donor has shown that its whole state would take less than half as long as what is left of the
/// download from `donor` that `report` tells of, or that it alone would be through in time; never, where none does.
/// Each is tried once: from then on `paces` says what it is worth, as it does of a donor that was left. Python donors,
/// which cannot show it, are taken where the download cannot end in time.
/// \param deadline  of the download
Task<FasterDonor> await_faster_donor(Dht& dht, PeerId donor, std::deque<PeerId> others, PieceSource source,
                                     const DownloadReport& report, Deadline deadline, DonorPaces& paces);

}  // namespace cohive::averaging
