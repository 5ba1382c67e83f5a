#include "cohive/transport/sim_network.hpp"

#include <algorithm>
#include <cmath>
#include <list>
#include <map>
#include <unordered_set>

#include "cohive/core/errors.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::transport {
namespace {

/// Bytes on the way per direction of a connection; writers wait above it, as behind a TCP window.
constexpr std::size_t kInFlight = 1024 * 1024;
/// What arrives at one moment; a long write arrives piece by piece.
constexpr std::size_t kMaxChunk = 256 * 1024;
constexpr std::size_t kBacklog = 1024;
constexpr std::uint16_t kFirstPort = 1024;
/// What an operating system tries before it gives up.
constexpr Duration kConnectTimeout = 127s;

/// An IPv4 address as a number; 0 is no machine.
using Machine = std::uint32_t;

constexpr Machine kBeforeFirst = 10U << 24;

std::string ip_of(Machine machine) {
  return std::to_string(machine >> 24) + "." + std::to_string(machine >> 16 & 255) + "." +
         std::to_string(machine >> 8 & 255) + "." + std::to_string(machine & 255);
}

Machine machine_of(const std::string& ip) {
  const auto address = Multiaddr::from_ip_tcp(ip, 0);
  if (!address) return 0;
  const Bytes value = address->components().front().value;
  if (value.size() != 4) return 0;
  return Machine{value[0]} << 24 | Machine{value[1]} << 16 | Machine{value[2]} << 8 | value[3];
}

std::unordered_set<Machine> machines_of(const std::set<std::string>& ips) {
  std::unordered_set<Machine> result;
  for (const auto& ip : ips) result.insert(machine_of(ip));
  return result;
}

struct Wire;
/// A connection in the list of one of its machines.
struct WireEnd : ListHook {
  Wire* wire = nullptr;
};

/// A machine's own line, which its connections share.
struct Line {
  BandwidthLimits rates;
  TimePoint up_free{}, down_free{};
};
/// A line carries a write in pieces, and takes few of them ahead of time.
constexpr double kLinePiece = 0.005, kLineAhead = 0.1;  // seconds
constexpr std::size_t kMinPiece = 1024, kMinAhead = 32 * 1024;

std::size_t bytes_in(double rate, double seconds) {
  return static_cast<std::size_t>(rate * seconds);
}

/// When bytes that come at `start` have passed.
TimePoint pass(TimePoint start, TimePoint& free_at, std::size_t bytes, double rate) {
  if (rate <= 0) return start;
  free_at = std::max(start, free_at) + from_seconds(static_cast<double>(bytes) / rate);
  return free_at;
}

/// One direction of a connection: chunks with their times of arrival, in order. An empty chunk is the end, or a reset.
struct Pipe {
  struct Chunk {
    Bytes bytes;
    std::size_t offset = 0;
    TimePoint arrival;
    bool reset = false;
  };

  Pipe(Runtime& runtime, Wire& wire, Machine a, Machine b)
      : owner(wire),
        from(a),
        to(b),
        readable(runtime, "simulated bytes"),
        writable(runtime, "simulated link"),
        timer(runtime, [](void* self) { static_cast<Pipe*>(self)->arrive(); }, this) {}

  void put(Bytes bytes);
  /// As TCP does when bytes come to somebody who has closed: what waits to be sent is lost, what was sent arrives.
  void put_reset();
  /// Arms the timer for the next arrival, unless the link is blocked; healing calls again.
  void schedule();
  void arrive();
  void discard();
  Pipe& opposite() const;

  Wire& owner;
  const Machine from, to;
  std::list<Chunk> chunks;
  std::list<Chunk>::iterator next = chunks.end();  // the first that has not arrived
  std::size_t in_flight = 0;                       // sent and not yet read
  std::size_t under_way = 0;                       // sent and not yet arrived
  TimePoint free_at{}, last_arrival{};
  bool end_sent = false;     // by the writer, or a reset
  bool was_reset = false;    // the reset has arrived: the reader reads what came before, and writes no more
  bool reader_gone = false;  // what arrives is thrown away, and answered by a reset
  Condition readable, writable;
  Timer timer;
};

}  // namespace

struct SimFabric::Impl {
  Impl(SimRuntime& r, SimLink link, bool plain) : runtime(r), default_link(link), plaintext(plain) {}

  static std::uint64_t pair_of(Machine a, Machine b) { return std::uint64_t{std::min(a, b)} << 32 | std::max(a, b); }
  const SimLink& link(Machine a, Machine b) const {
    if (links.empty()) return default_link;
    const auto found = links.find(pair_of(a, b));
    return found == links.end() ? default_link : found->second;
  }
  bool blocked(Machine a, Machine b) const {
    if (!crashed.empty() && (crashed.contains(a) || crashed.contains(b))) return true;
    return std::any_of(partitions.begin(), partitions.end(), [&](const auto& sides) {
      return (sides.first.contains(a) && sides.second.contains(b)) ||
             (sides.first.contains(b) && sides.second.contains(a));
    });
  }
  Line* line(Machine machine) {
    if (lines.empty()) return nullptr;
    const auto found = lines.find(machine);
    return found == lines.end() ? nullptr : &found->second;
  }
  /// The slowest of the lines at both ends; 0: none is limited.
  double line_rate(Machine from, Machine to) {
    double rate = 0;
    const Line *up = line(from), *down = line(to);
    if (up && up->rates.upload > 0) rate = up->rates.upload;
    if (down && down->rates.download > 0 && (rate == 0 || down->rates.download < rate)) rate = down->rates.download;
    return rate;
  }
  Duration delay(const SimLink& link) {
    if (link.jitter <= 0ns) return link.latency;
    return link.latency + from_seconds(runtime.random_unit() * to_seconds(link.jitter));
  }

  SimRuntime& runtime;
  SimLink default_link;
  bool plaintext;
  Machine last_machine = kBeforeFirst;
  std::unordered_map<std::uint64_t, SimLink> links;
  std::unordered_map<Machine, Line> lines;
  std::vector<std::pair<std::unordered_set<Machine>, std::unordered_set<Machine>>> partitions;
  std::unordered_set<Machine> crashed;
  std::map<std::pair<Machine, std::uint16_t>, class SimListener*> listeners;
  std::unordered_map<Machine, std::uint16_t> last_port;
  // In the order of their making, so that runs repeat: all, and those of each machine.
  IntrusiveList<Wire> wires;
  std::unordered_map<Machine, IntrusiveList<WireEnd>> wires_of;
  std::size_t open = 0;
  Tap tap;
  std::uint64_t carried = 0;
};

namespace {

/// A connection: two pipes and what both ends share.
struct Wire : ListHook {
  Wire(std::shared_ptr<SimFabric::Impl> f, Machine a, Machine b)
      : fabric(std::move(f)),
        forward(fabric->runtime, *this, a, b),
        backward(fabric->runtime, *this, b, a),
        death(fabric->runtime, [](void* self) { static_cast<Wire*>(self)->reset(); }, this) {
    fabric->wires.push_back(*this);
    ends[0].wire = ends[1].wire = this;
    fabric->wires_of[a].push_back(ends[0]);
    fabric->wires_of[b].push_back(ends[1]);
    ++fabric->open;
    const SimLink& link = fabric->link(a, b);
    if (link.mean_lifetime > 0ns) {
      const double life = -std::log(1.0 - fabric->runtime.random_unit()) * to_seconds(link.mean_lifetime);
      death.arm(fabric->runtime.after(from_seconds(life)));
    }
  }
  ~Wire() {
    unlink();
    for (WireEnd& end : ends) end.unlink();
    --fabric->open;
  }

  /// Both ends notice at once; bytes on the way are lost.
  void reset() {
    broken = true;
    death.disarm();
    for (Pipe* pipe : {&forward, &backward}) {
      pipe->timer.disarm();
      pipe->chunks.clear();
      pipe->next = pipe->chunks.end();
      pipe->in_flight = 0;
      pipe->under_way = 0;
      pipe->readable.notify_all();
      pipe->writable.notify_all();
    }
  }

  std::shared_ptr<SimFabric::Impl> fabric;
  WireEnd ends[2];
  Pipe forward, backward;
  Timer death;
  bool broken = false;
};

Pipe& Pipe::opposite() const {
  return this == &owner.forward ? owner.backward : owner.forward;
}

void Pipe::put(Bytes bytes) {
  auto& fabric = *owner.fabric;
  const SimLink& link = fabric.link(from, to);
  TimePoint sent = fabric.runtime.now();
  if (Line* line = fabric.line(from)) sent = pass(sent, line->up_free, bytes.size(), line->rates.upload);
  free_at = std::max(sent, free_at);
  if (link.bandwidth > 0) free_at += from_seconds(static_cast<double>(bytes.size()) / link.bandwidth);
  TimePoint arrival = free_at + fabric.delay(link);
  if (Line* line = fabric.line(to)) arrival = pass(arrival, line->down_free, bytes.size(), line->rates.download);
  last_arrival = std::max(last_arrival, arrival);
  in_flight += bytes.size();
  under_way += bytes.size();
  chunks.push_back({std::move(bytes), 0, last_arrival});
  if (next != chunks.end()) return;
  next = std::prev(chunks.end());
  schedule();
}

void Pipe::put_reset() {
  auto& fabric = *owner.fabric;
  if (was_reset || (!chunks.empty() && chunks.back().reset)) return;
  const TimePoint arrival = fabric.runtime.now() + fabric.delay(fabric.link(from, to));
  while (next != chunks.end() && chunks.back().arrival > arrival) {
    in_flight -= chunks.back().bytes.size();
    under_way -= chunks.back().bytes.size();
    if (next == std::prev(chunks.end())) next = chunks.end();
    chunks.pop_back();
  }
  end_sent = true;
  chunks.push_back({{}, 0, arrival, true});
  if (next == chunks.end()) next = std::prev(chunks.end());
  schedule();
}

void Pipe::schedule() {
  if (next == chunks.end() || owner.fabric->blocked(from, to)) return;
  timer.arm(std::max(next->arrival, owner.fabric->runtime.now()));
}

void Pipe::arrive() {
  if (owner.fabric->blocked(from, to)) return;
  const TimePoint now = owner.fabric->runtime.now();
  bool refused = false;
  for (; next != chunks.end() && next->arrival <= now; ++next) {
    under_way -= next->bytes.size();
    refused |= reader_gone && !next->bytes.empty();
    if (!next->reset) continue;
    was_reset = true;
    opposite().writable.notify_all();
  }
  if (refused) opposite().put_reset();
  reader_gone ? discard() : readable.notify_all();
  schedule();
}

void Pipe::discard() {
  while (chunks.begin() != next) {
    in_flight -= chunks.front().bytes.size() - chunks.front().offset;
    chunks.pop_front();
  }
  writable.notify_all();
}

class SimConnection final : public RawConnection {
 public:
  SimConnection(std::shared_ptr<Wire> wire, bool dialler, Multiaddr local, Multiaddr remote)
      : wire_(std::move(wire)),
        in_(dialler ? wire_->backward : wire_->forward),
        out_(dialler ? wire_->forward : wire_->backward),
        local_(std::move(local)),
        remote_(std::move(remote)) {}
  ~SimConnection() override { close(); }

  Task<Result<std::size_t>> read_some(MutableBytes into) override {
    for (;;) {
      if (auto error = broken()) co_return *error;
      if (in_.chunks.begin() != in_.next) {
        if (in_.chunks.front().reset) co_return reset();
        co_return take(into);
      }
      co_await in_.readable.wait();
    }
  }

  Task<void> wait_readable() override {
    while (!wire_->broken && !closed_ && in_.chunks.begin() == in_.next) co_await in_.readable.wait();
  }

  Task<Result<>> write_all(std::span<const ByteView> buffers) override {
    std::size_t left = 0;
    for (ByteView buffer : buffers) left += buffer.size();
    std::size_t index = 0, offset = 0;
    while (left > 0) {
      if (auto error = broken()) co_return *error;
      if (in_.was_reset) co_return reset();
      if (out_.end_sent) co_return Error(cohive::Errc::closed, "writing after the end");
      const double rate = wire_->fabric->line_rate(out_.from, out_.to);
      const std::size_t ahead = rate > 0 ? std::clamp(bytes_in(rate, kLineAhead), kMinAhead, kInFlight) : kInFlight;
      if (out_.in_flight >= ahead) {
        co_await out_.writable.wait();
        continue;
      }
      const std::size_t piece = rate > 0 ? std::clamp(bytes_in(rate, kLinePiece), kMinPiece, kMaxChunk) : kMaxChunk;
      const std::size_t size = std::min({left, ahead - out_.in_flight, piece});
      Bytes chunk;
      chunk.reserve(size);
      while (chunk.size() < size) {
        const ByteView rest = buffers[index].subspan(offset);
        const ByteView part = rest.first(std::min(rest.size(), size - chunk.size()));
        chunk.insert(chunk.end(), part.begin(), part.end());
        offset += part.size();
        if (offset == buffers[index].size()) {
          ++index;
          offset = 0;
        }
      }
      left -= chunk.size();
      send(std::move(chunk));
    }
    co_return ok();
  }

  void end_writing() noexcept override {
    if (closed_ || wire_->broken || std::exchange(out_.end_sent, true)) return;
    out_.put({});
    out_.writable.notify_all();
  }
  void close() noexcept override {
    if (closed_) return;
    const bool unread = in_.chunks.begin() != in_.next && !in_.chunks.front().bytes.empty();
    if (!unread) end_writing();
    closed_ = true;
    in_.reader_gone = true;
    if (!wire_->broken) {
      if (unread) out_.put_reset();
      in_.discard();
    }
    in_.readable.notify_all();
    out_.writable.notify_all();
  }
  const Multiaddr& local_address() const override { return local_; }
  const Multiaddr& remote_address() const override { return remote_; }
  std::size_t undelivered() const override { return out_.under_way; }

 private:
  std::optional<Error> broken() const {
    if (wire_->broken) return reset();
    if (closed_) return Error(cohive::Errc::closed, remote_.text());
    return std::nullopt;
  }

  static Error reset() { return Error(cohive::Errc::closed, "connection reset"); }

  std::size_t take(MutableBytes into) {
    std::size_t total = 0;
    while (in_.chunks.begin() != in_.next && total < into.size()) {
      Pipe::Chunk& chunk = in_.chunks.front();
      if (chunk.bytes.empty()) break;  // the end stays: every later read ends too
      const std::size_t count = std::min(into.size() - total, chunk.bytes.size() - chunk.offset);
      std::memcpy(into.data() + total, chunk.bytes.data() + chunk.offset, count);
      chunk.offset += count;
      total += count;
      if (chunk.offset == chunk.bytes.size()) in_.chunks.pop_front();
    }
    in_.in_flight -= total;
    if (total > 0) in_.writable.notify_all();
    return total;
  }

  void send(Bytes bytes) {
    auto& fabric = *wire_->fabric;
    if (fabric.tap) {
      const SimFabric::Tap tap = fabric.tap;  // it may replace itself
      if (!tap(ip_of(out_.from), ip_of(out_.to), bytes)) wire_->reset();
      if (wire_->broken) return;
    }
    fabric.carried += bytes.size();
    out_.put(std::move(bytes));
  }

  std::shared_ptr<Wire> wire_;
  Pipe& in_;
  Pipe& out_;
  Multiaddr local_, remote_;
  bool closed_ = false;
};

}  // namespace

class SimListener final : public Listener {
 public:
  SimListener(std::shared_ptr<SimFabric::Impl> fabric, Machine machine, std::uint16_t port)
      : fabric_(std::move(fabric)),
        key_(machine, port),
        address_(Multiaddr::from_ip_tcp(ip_of(machine), port).value()),
        ready_(fabric_->runtime, "simulated accept") {
    fabric_->listeners[key_] = this;
  }
  ~SimListener() override { close(); }

  Task<Result<std::unique_ptr<RawConnection>>> accept() override {
    for (;;) {
      if (!waiting_.empty()) {
        auto connection = std::move(waiting_.front());
        waiting_.pop_front();
        co_return connection;
      }
      if (closed_) co_return Error(cohive::Errc::closed, address_.text());
      co_await ready_.wait();
    }
  }
  bool full() const { return waiting_.size() >= kBacklog; }
  void offer(std::unique_ptr<RawConnection> connection) {
    waiting_.push_back(std::move(connection));
    ready_.notify_one();
  }
  const Multiaddr& address() const override { return address_; }
  std::vector<Multiaddr> dialable_addresses() const override { return {address_}; }
  void close() noexcept override {
    if (closed_) return;
    closed_ = true;
    fabric_->listeners.erase(key_);
    waiting_.clear();
    ready_.notify_all();
  }

 private:
  std::shared_ptr<SimFabric::Impl> fabric_;
  std::pair<Machine, std::uint16_t> key_;
  Multiaddr address_;
  std::list<std::unique_ptr<RawConnection>> waiting_;
  Condition ready_;
  bool closed_ = false;
};

namespace {

class SimMachine final : public Network {
 public:
  SimMachine(std::shared_ptr<SimFabric::Impl> fabric, Machine number) : fabric_(std::move(fabric)), machine_(number) {}
  Runtime& runtime() override { return fabric_->runtime; }
  bool plaintext() const override { return fabric_->plaintext; }

  Result<std::unique_ptr<Listener>> listen(const Multiaddr& address) override {
    const auto endpoint = address.tcp_endpoint();
    if (!endpoint || endpoint->host_code != Multiaddr::ip4) return Error(Errc::address_unsupported, address.text());
    if (!address.is_unspecified() && machine_of(endpoint->host) != machine_)
      return Error(cohive::Errc::io, "cannot listen on " + address.text() + ": not an address of this machine");
    const std::uint16_t port = endpoint->port ? endpoint->port : new_port(*fabric_, machine_);
    if (fabric_->listeners.contains({machine_, port})) return Error(Errc::address_in_use, address.text());
    return std::unique_ptr<Listener>(std::make_unique<SimListener>(fabric_, machine_, port));
  }

  Task<Result<std::unique_ptr<RawConnection>>> dial(Multiaddr address, Deadline deadline) override {
    return connect(fabric_, machine_, address.without_peer(), deadline);
  }

  Task<Result<std::vector<Multiaddr>>> resolve(Multiaddr address, Deadline) override {
    for (auto code : {Multiaddr::dns, Multiaddr::dns4, Multiaddr::dns6, Multiaddr::dnsaddr})
      if (address.has(code)) co_return Error(Errc::resolve_failed, address.text());
    co_return std::vector<Multiaddr>{std::move(address)};
  }

 private:
  static Task<Result<std::unique_ptr<RawConnection>>> connect(std::shared_ptr<SimFabric::Impl> fabric, Machine from,
                                                              Multiaddr address, Deadline deadline) {
    SimRuntime& runtime = fabric->runtime;
    const auto endpoint = address.tcp_endpoint();
    if (!endpoint) co_return Error(Errc::address_unsupported, address.text());
    const Machine to = machine_of(endpoint->host);
    const SimLink link = fabric->link(from, to);
    const Duration there = fabric->delay(link), back = fabric->delay(link);
    const bool fails = link.connect_failure > 0 && runtime.random_unit() < link.connect_failure;
    const Deadline limit = deadline.min(runtime.after(kConnectTimeout));
    const bool too_far = limit.passed(runtime.now() + there + back);
    if (!too_far && !fabric->blocked(from, to)) co_await runtime.sleep_for(there);
    if (too_far || fabric->blocked(from, to)) {
      co_await runtime.sleep_until(limit.at());
      co_return Error(cohive::Errc::timeout, "connecting to " + address.text());
    }
    const auto found = fabric->listeners.find({to, endpoint->port});
    if (fails || found == fabric->listeners.end() || found->second->full()) {
      co_await runtime.sleep_for(back);
      co_return Error(Errc::dial_failed, address.text() + ": connection refused");
    }
    const Multiaddr local = Multiaddr::from_ip_tcp(ip_of(from), new_port(*fabric, from)).value();
    auto wire = std::make_shared<Wire>(fabric, from, to);
    auto ours = std::make_unique<SimConnection>(wire, true, local, address);
    found->second->offer(std::make_unique<SimConnection>(wire, false, address, local));
    co_await runtime.sleep_for(back);
    co_return std::unique_ptr<RawConnection>(std::move(ours));
  }

  static std::uint16_t new_port(SimFabric::Impl& fabric, Machine machine) {
    std::uint16_t& last = fabric.last_port[machine];
    do {
      last = last < kFirstPort ? kFirstPort : static_cast<std::uint16_t>(last + 1);
    } while (last < kFirstPort || fabric.listeners.contains({machine, last}));
    return last;
  }

  std::shared_ptr<SimFabric::Impl> fabric_;
  Machine machine_;
};

}  // namespace

SimFabric::SimFabric(SimRuntime& runtime, SimLink defaults, bool plaintext)
    : impl_(std::make_shared<Impl>(runtime, defaults, plaintext)) {}
SimFabric::~SimFabric() = default;

SimRuntime& SimFabric::runtime() noexcept {
  return impl_->runtime;
}

std::unique_ptr<Network> SimFabric::add_machine() {
  return std::make_unique<SimMachine>(impl_, ++impl_->last_machine);
}
std::unique_ptr<Network> SimFabric::add_machine(const std::string& ip) {
  return std::make_unique<SimMachine>(impl_, machine_of(ip));
}

void SimFabric::set_link(const std::string& a, const std::string& b, SimLink link) {
  impl_->links[Impl::pair_of(machine_of(a), machine_of(b))] = link;
}
void SimFabric::set_default_link(SimLink link) {
  impl_->default_link = link;
}

void SimFabric::set_line(const std::string& ip, BandwidthLimits rates) {
  impl_->lines[machine_of(ip)].rates = rates;
}

void SimFabric::partition(const std::set<std::string>& a, const std::set<std::string>& b) {
  impl_->partitions.emplace_back(machines_of(a), machines_of(b));
}

void SimFabric::heal() {
  impl_->partitions.clear();
  impl_->wires.for_each([](Wire& wire) {
    wire.forward.schedule();
    wire.backward.schedule();
  });
}

void SimFabric::crash(const std::string& ip) {
  impl_->crashed.insert(machine_of(ip));
}

void SimFabric::kill(const std::string& ip) {
  const Machine machine = machine_of(ip);
  impl_->wires_of[machine].for_each([](WireEnd& end) { end.wire->reset(); });
  std::vector<SimListener*> gone;
  for (auto at = impl_->listeners.lower_bound({machine, 0}); at != impl_->listeners.end() && at->first.first == machine;
       ++at)
    gone.push_back(at->second);
  for (auto* listener : gone) listener->close();
}

void SimFabric::set_tap(Tap tap) {
  impl_->tap = std::move(tap);
}
std::uint64_t SimFabric::bytes_carried() const noexcept {
  return impl_->carried;
}
std::size_t SimFabric::open_connections() const noexcept {
  return impl_->open;
}

}  // namespace cohive::transport
