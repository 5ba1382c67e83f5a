// Finding a donor of the state: the best that peers have declared, the next one when it fails.
// Source: hivemind wire spec, sections 6.2 and 6.9.
#pragma once

#include "state_transfer.hpp"

namespace cohive::averaging {

struct DownloadSetup {
  std::string declared_under;  ///< DHT key
  std::string protocol;        ///< of rpc_download_state
  Duration chunk_timeout{};    ///< a donor that is silent for longer is given up
  std::uint64_t max_bytes = 0;
};

/// Asks the donors in the order of their priority; when all have failed, those declared by then once more. The error
/// is that of the last donor; no_donor at once when nobody shares a state.
Task<Result<DownloadedState>> download_from_donors(Dht& dht, DownloadSetup setup, Deadline deadline);

}  // namespace cohive::averaging
