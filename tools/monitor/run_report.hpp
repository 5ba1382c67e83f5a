// What cohive trainers tell of their run when a monitor asks: their last rounds, and how far other peers are. Python
// peers have no such call. All of it is a claim of that peer, within bounds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohive/p2p/host.hpp"

namespace cohive::tools {

struct RunReport {
  struct Round {
    enum class Outcome { ok, partial, failed, missed };
    double time = 0;       ///< of its end, by the clock of the peer
    std::string averager;  ///< "gradients" or "parameters"
    std::string group_id;  ///< hexadecimal digits; empty: no group was found
    std::size_t members = 0;
    double matchmaking = 0, allreduce = 0;  ///< seconds
    Outcome outcome = Outcome::ok;
    std::string message;  ///< peer-supplied text
  };
  struct Link {
    PeerId peer;
    double round_trip = 0;  ///< seconds
  };
  std::string schema_hash;  ///< peers with another one average apart
  std::vector<Round> rounds;
  std::vector<Link> links;
};

std::string_view to_text(RunReport::Round::Outcome outcome);

/// What is no report at all is nullopt; rounds and links without sense are left out.
std::optional<RunReport> run_report_from(ByteView text);
/// Errors: Errc::malformed, those of rpc::open_call.
Task<Result<RunReport>> read_run_report(p2p::Host& host, PeerId peer, std::string run_id, Deadline deadline);

}  // namespace cohive::tools
