// Finds out, step by step, why a swarm cannot be joined or why peers cannot reach this machine, and says what to do.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/task.hpp"
#include "cohive/transport/network.hpp"

namespace cohive::tools {

/// What one step showed.
struct Finding {
  enum class Status { ok, failed, skipped };
  std::string step;  ///< "name", "tcp", "handshake", "identify", ...
  Status status = Status::ok;
  std::string text;    ///< what was found
  std::string advice;  ///< what to do about it; empty: nothing
  nlohmann::json details = nlohmann::json::object();
};

struct DoctorOptions {
  std::vector<Multiaddr> targets;  ///< of peers to be reached, with or without /p2p
  std::vector<Multiaddr> listen;   ///< where the peer of this machine would listen, and is dialled back
};

/// \param target  the address that the step is about; empty: this machine
using FindingReport = std::function<void(const Multiaddr& target, const Finding& finding)>;

/// Reports each step as soon as it is done. Yields whether none has failed.
Task<bool> diagnose(transport::Network& network, DoctorOptions options, FindingReport report);

std::string_view to_text(Finding::Status status);

}  // namespace cohive::tools
