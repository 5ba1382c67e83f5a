/// \file
/// The simulated network: machines joined by links with latency, bandwidth, loss of connections and partitions, on the
/// virtual time of a SimRuntime. Deterministic for a seed.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/transport/network.hpp"

namespace cohive::transport {

/// What a simulated link is like.
struct SimLink {
  Duration latency = 10ms;       ///< one way
  Duration jitter = 0ms;         ///< added uniformly, order is kept
  double bandwidth = 0;          ///< bytes per second per direction of a connection; 0: unlimited
  double connect_failure = 0;    ///< probability that a dial fails
  Duration mean_lifetime = 0ms;  ///< connections die after an exponential time with this mean; 0: never
};

/// The wires. Every machine has its own IPv4 address in it: 10.x.y.z, counted up, unless other ones are wanted.
class SimFabric {
 public:
  /// Makes wires without machines. \param defaults links that set_link() does not name.
  explicit SimFabric(SimRuntime& runtime, SimLink defaults = {});
  ~SimFabric();
  /// Returns the simulated loop of all machines.
  SimRuntime& runtime() noexcept;

  /// A new machine; its Network stays valid as long as the fabric.
  /// Listening on /ip4/0.0.0.0/tcp/0 or its own address is allowed.
  std::unique_ptr<Network> add_machine();
  /// \param ip, other  addresses of no other machine; with two, one is IPv4 and one IPv6. Faults, links and lines are
  /// set
  ///                   for each of them.
  std::unique_ptr<Network> add_machine(const std::string& ip, const std::string& other = {});

  /// Puts a machine behind an address translator: machines elsewhere see it at `outside`, with the port it dials from.
  /// They cannot connect to `inside`. What they send to `outside` is dropped, or reaches the same port inside when it
  /// `lets_in`, which one machine behind an outside address may. Machines behind one outside address reach each other.
  void set_nat(const std::string& inside, const std::string& outside, bool lets_in = false);

  /// From now on its translator lets in, for half a minute, what comes from an address that the machine has dialled.
  void let_punch(const std::string& inside);

  /// Links between two machines, by IP address text; later calls override.
  void set_link(const std::string& ip_a, const std::string& ip_b, SimLink link);
  /// The same for all pairs of machines that set_link() does not name.
  void set_default_link(SimLink link);
  /// What the machine's own line carries in all its connections together, bytes per second, on top of what the links
  /// allow. What leaves waits in the order of sending, what comes in the order of coming, a piece of each connection at
  /// a time. 0: unlimited.
  void set_line(const std::string& ip, BandwidthLimits rates);
  /// Silently stops all bytes between the two sets of machines (existing connections stall; dials time out).
  /// heal() ends all partitions; what was on the way arrives then. A crashed machine stays away.
  void partition(const std::set<std::string>& side_a, const std::set<std::string>& side_b);
  /// Ends all partitions.
  void heal();
  /// The machine vanishes: connections to it stall (crash), or are reset at once and its ports refuse (killed process).
  void crash(const std::string& ip);
  /// Ends a machine as a killed process ends: its connections are reset.
  void kill(const std::string& ip);
  /// Called for each chunk sent (what one write gathered, at most 256 KiB); returning false resets the connection.
  using Tap = std::function<bool(const std::string& from_ip, const std::string& to_ip, ByteView bytes)>;
  /// Sets what looks at all chunks from now on.
  void set_tap(Tap tap);

  /// Returns the bytes of all connections so far.
  std::uint64_t bytes_carried() const noexcept;
  /// Connections of which at least one end object still exists.
  std::size_t open_connections() const noexcept;

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace cohive::transport
