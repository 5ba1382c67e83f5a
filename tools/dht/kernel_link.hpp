// What the kernel makes of a long link: by what algorithm it sends, how it queues, and how much one connection holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "dht/doctor.hpp"

namespace cohive::tools {

struct KernelLink {
  std::string between_cohive;          ///< the congestion control of connections between cohive peers
  std::string otherwise;               ///< that of other connections
  std::vector<std::string> available;  ///< algorithms that are loaded; empty: not told
  std::string interface, qdisc;        ///< by which the peer is reached; empty: not told
  std::uint64_t most_send = 0;         ///< the last number of tcp_wmem, bytes; 0: not told
  std::uint64_t most_receive = 0;      ///< that of tcp_rmem
};

/// Asks the kernel.
/// \param local  this machine's end of a connection to the peer
KernelLink read_kernel_link(const Multiaddr& local);

/// The step `link`: what the kernel allows at this round trip, and what helps.
Finding examine_kernel_link(const KernelLink& link, Duration round_trip);

}  // namespace cohive::tools
