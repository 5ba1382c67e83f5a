// The command doctor of cohive-dht and of cohive-monitor.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "common/client.hpp"

namespace cohive::tools {

struct DoctorCommand {
  std::string target;  ///< of a peer; empty: initial_peers
  std::vector<std::string> initial_peers;
  std::vector<std::string> host_maddrs{"/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"};
  std::string run_id;  ///< examined, too; empty: none
  ClientMember member;
  bool json = false;
};

/// Adds ADDRESS and --host-maddrs.
void add_doctor_options(CLI::App& command, DoctorCommand& doctor);
/// Prints what is found. Returns the exit code: 0 when nothing is wrong.
int run_doctor(const DoctorCommand& command);

}  // namespace cohive::tools
