#include "sim_fabric.hpp"

#include <algorithm>
#include <cmath>

namespace cohive::transport {
namespace {

/// Bytes on the way per direction of a connection; writers wait above it, as behind a TCP window.
constexpr std::size_t kInFlight = 1024 * 1024;
/// What arrives at one moment; a long write arrives piece by piece.
constexpr std::size_t kMaxChunk = 256 * 1024;
constexpr std::uint16_t kFirstPort = 1024;
constexpr Duration kHoleLife = 30s;
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

}  // namespace

// ---- Addresses

std::string SimFabric::Impl::text_of(Machine machine) const {
  if (machine <= ip6.size()) return machine == 0 ? std::string() : ip6[machine - 1];
  return std::to_string(machine >> 24) + "." + std::to_string(machine >> 16 & 255) + "." +
         std::to_string(machine >> 8 & 255) + "." + std::to_string(machine & 255);
}

Machine SimFabric::Impl::number_of(const std::string& ip) const {
  const auto address = Multiaddr::from_ip_tcp(ip, 0);
  if (!address) return 0;
  const Bytes value = address->components().front().value;
  if (value.size() == 4) return Machine{value[0]} << 24 | Machine{value[1]} << 16 | Machine{value[2]} << 8 | value[3];
  const auto found = std::find(ip6.begin(), ip6.end(), *address->value(Multiaddr::ip6));
  return found == ip6.end() ? 0 : static_cast<Machine>(found - ip6.begin()) + 1;
}

std::unordered_set<Machine> SimFabric::Impl::numbers_of(const std::set<std::string>& ips) const {
  std::unordered_set<Machine> result;
  for (const auto& ip : ips) result.insert(number_of(ip));
  return result;
}

Machine SimFabric::Impl::add_address(const std::string& ip) {
  const Multiaddr address = Multiaddr::from_ip_tcp(ip, 0).value();
  if (const auto text = address.value(Multiaddr::ip6); text && number_of(ip) == 0) ip6.push_back(*text);
  return number_of(ip);
}

Multiaddr SimFabric::Impl::address_of(Machine machine, std::uint16_t port) const {
  return Multiaddr::from_ip_tcp(text_of(machine), port).value();
}

Machine SimFabric::Impl::seen_as(Machine from, Machine to) const {
  if (nats.empty()) return from;
  const auto own = nats.find(from), theirs = nats.find(to);
  if (own == nats.end()) return from;
  const bool neighbours = theirs != nats.end() && theirs->second.first == own->second.first;
  return neighbours ? from : own->second.first;
}

Machine SimFabric::Impl::reached_at(Machine from, Machine to) const {
  if (nats.empty()) return to;
  const auto own = nats.find(from);
  const Machine own_outside = own == nats.end() ? 0 : own->second.first;
  if (const auto inside = nats.find(to); inside != nats.end()) return inside->second.first == own_outside ? to : 0;
  bool is_outside = false;
  for (const auto& [inside, nat] : nats) {
    if (nat.first != to) continue;
    if (nat.second && to != own_outside) return inside;
    const auto hole = holes.find({inside, own_outside == 0 ? from : own_outside});
    if (hole != holes.end() && hole->second > runtime.now()) return inside;
    is_outside = true;
  }
  return is_outside ? 0 : to;
}

void SimFabric::Impl::open_hole(Machine from, Machine to) {
  if (punchable.contains(from)) holes[{from, to}] = runtime.now() + kHoleLife;
}

std::uint16_t SimFabric::Impl::new_port(Machine machine) {
  std::uint16_t& last = last_port[machine];
  do {
    last = last < kFirstPort ? kFirstPort : static_cast<std::uint16_t>(last + 1);
  } while (last < kFirstPort || listeners.contains({machine, last}));
  return last;
}

// ---- Links

bool SimFabric::Impl::blocked(Machine a, Machine b) const {
  if (!crashed.empty() && (crashed.contains(a) || crashed.contains(b))) return true;
  return std::any_of(partitions.begin(), partitions.end(), [&](const auto& sides) {
    return (sides.first.contains(a) && sides.second.contains(b)) ||
           (sides.first.contains(b) && sides.second.contains(a));
  });
}

/// As the slowest of the lines at both ends carries it.
SimFabric::Impl::Pace SimFabric::Impl::pace(Machine from, Machine to) {
  double rate = 0;
  const sim::Line *up = line(from), *down = line(to);
  if (up && up->rates.upload > 0) rate = up->rates.upload;
  if (down && down->rates.download > 0 && (rate == 0 || down->rates.download < rate)) rate = down->rates.download;
  if (rate <= 0) return {kInFlight, kMaxChunk};
  return {std::clamp(bytes_in(rate, kLineAhead), kMinAhead, kInFlight),
          std::clamp(bytes_in(rate, kLinePiece), kMinPiece, kMaxChunk)};
}

Duration SimFabric::Impl::delay(const SimLink& link) const {
  if (link.jitter <= 0ns) return link.latency;
  return link.latency + from_seconds(runtime.random_unit() * to_seconds(link.jitter));
}

namespace sim {

// ---- Connections

Wire::Wire(std::shared_ptr<SimFabric::Impl> f, Machine a, Machine b)
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
Wire::~Wire() {
  unlink();
  for (WireEnd& end : ends) end.unlink();
  --fabric->open;
}

void Wire::reset() {
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

Pipe& Pipe::opposite() const {
  return this == &owner.forward ? owner.backward : owner.forward;
}

void Pipe::put(Bytes bytes) {
  auto& fabric = *owner.fabric;
  const SimLink& link = fabric.link(from, to);
  TimePoint sent = fabric.runtime.now();
  if (Line* line = fabric.line(from)) sent = pass(sent, line->up_free, bytes.size(), line->rates.upload);
  path_delay = sent - fabric.runtime.now();
  free_at = std::max(sent, free_at);
  if (link.bandwidth > 0) free_at += from_seconds(static_cast<double>(bytes.size()) / link.bandwidth);
  path_delay += link.latency;
  last_arrival = std::max(last_arrival, free_at + fabric.delay(link));
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
  const auto before = next;
  for (; next != chunks.end() && next->arrival <= now && passes_line(*next); ++next) {
    under_way -= next->bytes.size();
    refused |= reader_gone && !next->bytes.empty();
    if (!next->reset) continue;
    was_reset = true;
    opposite().writable.notify_all();
  }
  if (refused) opposite().put_reset();
  if (next != before) reader_gone ? discard() : readable.notify_all();
  schedule();
}

bool Pipe::passes_line(Chunk& chunk) {
  Line* line = chunk.reset || std::exchange(chunk.passing, true) ? nullptr : owner.fabric->line(to);
  if (!line) return true;
  const TimePoint now = owner.fabric->runtime.now();
  chunk.arrival = pass(now, line->down_free, chunk.bytes.size(), line->rates.download);
  line_delay = chunk.arrival - now;
  return chunk.arrival <= now;
}

void Pipe::discard() {
  while (chunks.begin() != next) {
    in_flight -= chunks.front().bytes.size() - chunks.front().offset;
    chunks.pop_front();
  }
  writable.notify_all();
}

}  // namespace sim
}  // namespace cohive::transport
