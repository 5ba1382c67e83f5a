// The inside of a SimFabric: its machines' addresses, links, lines and NATs, and the connections between them.
#pragma once

#include <list>
#include <map>
#include <unordered_set>

#include "cohive/core/sync.hpp"
#include "cohive/transport/sim_network.hpp"

namespace cohive::transport {

/// An IP address as a number: IPv4 as it is, IPv6 as its place in a list of the fabric. 0 is no address.
using Machine = std::uint32_t;

namespace sim {

struct Wire;
class SimListener;

/// A connection in the list of one of its machines.
struct WireEnd : ListHook {
  Wire* wire = nullptr;
};

/// A machine's own line, which its connections share.
struct Line {
  BandwidthLimits rates;
  TimePoint up_free{}, down_free{};
};

/// One direction of a connection: chunks with their times of arrival, in order. An empty chunk is the end, or a reset.
struct Pipe {
  struct Chunk {
    Bytes bytes;
    std::size_t offset = 0;
    TimePoint arrival;  // at the line of the receiver, until it passes that
    bool reset = false;
    bool passing = false;
  };

  Pipe(Runtime& runtime, Wire& wire, Machine a, Machine b)
      : owner(wire),
        from(a),
        to(b),
        readable(runtime, "simulated bytes"),
        writable(runtime, "simulated link"),
        timer(runtime, [](void* self) { static_cast<Pipe*>(self)->arrive(); }, this) {}

  void put(Bytes bytes);
  /// As TCP does when bytes come to an end that has closed: what waits to be sent is lost, what was sent arrives.
  void put_reset();
  /// Arms the timer for the next arrival, unless the link is blocked; healing calls again.
  void schedule();
  void arrive();
  /// Lets a chunk pass the receiver's line, where chunks wait in the order of coming, one of each connection at a time.
  /// Returns whether it has passed by now.
  bool passes_line(Chunk& chunk);
  void discard();
  Pipe& opposite() const;

  Wire& owner;
  const Machine from, to;
  std::list<Chunk> chunks;
  std::list<Chunk>::iterator next = chunks.end();  // the first that has not arrived
  std::size_t in_flight = 0;                       // sent and not yet read
  std::size_t under_way = 0;                       // sent and not yet arrived
  TimePoint free_at{}, last_arrival{};
  // How long the last bytes took to the receiver's line, and on it: with the queues of lines, without that of their own
  // connection.
  Duration path_delay{}, line_delay{};
  bool end_sent = false;     // by the writer, or a reset
  bool was_reset = false;    // the reset has arrived: the reader reads what came before, and writes no more
  bool reader_gone = false;  // what arrives is thrown away, and answered by a reset
  Condition readable, writable;
  Timer timer;
};

}  // namespace sim

struct SimFabric::Impl {
  Impl(SimRuntime& r, SimLink link) : runtime(r), default_link(link) {}

  // ---- Addresses
  std::string text_of(Machine machine) const;
  /// 0 for an IPv6 address that no machine has.
  Machine number_of(const std::string& ip) const;
  std::unordered_set<Machine> numbers_of(const std::set<std::string>& ips) const;
  Machine add_address(const std::string& ip);
  Multiaddr address_of(Machine machine, std::uint16_t port) const;
  /// The address that the machine at `to` sees when `from` connects to it.
  Machine seen_as(Machine from, Machine to) const;
  /// The machine that `from` reaches at `to`; 0: none, what it sends there is dropped.
  Machine reached_at(Machine from, Machine to) const;
  /// A machine dials: its translator remembers where to.
  void open_hole(Machine from, Machine to);
  std::uint16_t new_port(Machine machine);

  // ---- Links
  static std::uint64_t pair_of(Machine a, Machine b) { return std::uint64_t{std::min(a, b)} << 32 | std::max(a, b); }
  const SimLink& link(Machine a, Machine b) const {
    if (links.empty()) return default_link;
    const auto found = links.find(pair_of(a, b));
    return found == links.end() ? default_link : found->second;
  }
  bool blocked(Machine a, Machine b) const;
  sim::Line* line(Machine machine) {
    if (lines.empty()) return nullptr;
    const auto found = lines.find(machine);
    return found == lines.end() ? nullptr : &found->second;
  }
  /// How many bytes of a direction may be on the way, and how many arrive at once.
  struct Pace {
    std::size_t ahead, piece;
  };
  Pace pace(Machine from, Machine to);
  Duration delay(const SimLink& link) const;

  SimRuntime& runtime;
  SimLink default_link;
  Machine last_machine = 10U << 24;
  std::vector<std::string> ip6;                                ///< by number, from 1
  std::unordered_map<Machine, std::pair<Machine, bool>> nats;  ///< inside -> outside, and whether that lets in
  std::set<Machine> punchable;
  std::map<std::pair<Machine, Machine>, TimePoint> holes;  ///< inside, and where it may be reached from until then
  std::unordered_map<std::uint64_t, SimLink> links;
  std::unordered_map<Machine, sim::Line> lines;
  std::vector<std::pair<std::unordered_set<Machine>, std::unordered_set<Machine>>> partitions;
  std::unordered_set<Machine> crashed;
  std::map<std::pair<Machine, std::uint16_t>, sim::SimListener*> listeners;
  std::unordered_map<Machine, std::uint16_t> last_port;
  // In the order of their making, so that runs repeat: all, and those of each machine.
  IntrusiveList<sim::Wire> wires;
  std::unordered_map<Machine, IntrusiveList<sim::WireEnd>> wires_of;
  std::size_t open = 0;
  Tap tap;
  std::uint64_t carried = 0;
};

namespace sim {

/// A connection: two pipes and what both ends share.
struct Wire : ListHook {
  Wire(std::shared_ptr<SimFabric::Impl> f, Machine a, Machine b);
  ~Wire();
  /// Both ends notice at once; bytes on the way are lost.
  void reset();

  std::shared_ptr<SimFabric::Impl> fabric;
  WireEnd ends[2];
  Pipe forward, backward;
  Timer death;
  bool broken = false;
};

}  // namespace sim

}  // namespace cohive::transport
