// What a run tells monitors that ask, in a swarm with members these alone: its last rounds, without the addresses of
// peers, how far its peers are, and which model it trains. Between cohive peers only. Protocol
// "<run_id>::Run.rpc_report":
//   monitor -> END_OF_STREAM;  trainer -> RunReport, END_OF_STREAM
#pragma once

#include "cohive/rpc/rpc.hpp"
#include "history.hpp"

namespace cohive::train {

/// Replaces each address in a message by "(address)".
std::string without_addresses(const std::string& message);

class RunReports {
 public:
  /// Serves until it dies, which is before `history` does.
  /// \param schema_hash  of what the run averages: peers with another one do not fit
  RunReports(p2p::Host& host, const std::string& run_id, std::string schema_hash, const History& history);

 private:
  static Task<Result<>> serve(RunReports& self, rpc::ServerStream& stream);
  const std::string& report();

  p2p::Host& host_;
  const std::string schema_hash_;
  const History& history_;
  // Made once for all that ask within a second.
  std::string made_;
  TimePoint made_at_{};
  rpc::Server server_;
};

}  // namespace cohive::train
