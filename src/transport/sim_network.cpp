#include "cohive/transport/sim_network.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "cohive/core/errors.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::transport {
namespace {

/// Bytes on the way per direction of a connection; writers wait above it, as behind a TCP window.
constexpr std::size_t kInFlight = 1024 * 1024;
constexpr std::uint16_t kFirstPort = 1024;

struct Wire;

/// One direction of a connection: chunks with their times of arrival, in order.
struct Pipe {
  Pipe(Runtime& runtime, Wire& wire)
      : owner(wire), readable(runtime, "simulated bytes"), writable(runtime, "simulated link"),
        timer(runtime, [](void* self) { static_cast<Pipe*>(self)->arrived(); }, this) {}
  void arrived();
  void schedule();

  struct Chunk {
    Bytes bytes;
    std::size_t offset = 0;
    TimePoint arrival;
  };
  Wire& owner;
  std::string from, to;
  std::deque<Chunk> chunks;
  std::size_t bytes = 0;
  std::size_t deliverable = 0;  // chunks that have arrived
  TimePoint free_at{}, last_arrival{};
  bool finished = false;        // the writer closed
  bool reader_gone = false;
  Condition readable, writable;
  Timer timer;
};

}  // namespace

struct SimFabric::Impl : std::enable_shared_from_this<Impl> {
  Impl(SimRuntime& r, SimLink link, bool plain) : runtime(r), default_link(link), plaintext(plain) {}

  const SimLink& link(const std::string& a, const std::string& b) const {
    const auto found = links.find(std::minmax(a, b));
    return found == links.end() ? default_link : found->second;
  }
  bool blocked(const std::string& a, const std::string& b) const {
    if (crashed.contains(a) || crashed.contains(b)) return true;
    return std::any_of(partitions.begin(), partitions.end(), [&](const auto& sides) {
      return (sides.first.contains(a) && sides.second.contains(b)) || (sides.first.contains(b) && sides.second.contains(a));
    });
  }
  Duration delay(const SimLink& link) {
    return link.latency + Duration(static_cast<Duration::rep>(runtime.random_unit() * static_cast<double>(link.jitter.count())));
  }

  SimRuntime& runtime;
  SimLink default_link;
  bool plaintext;
  std::uint32_t machines = 0;
  std::map<std::pair<std::string, std::string>, SimLink> links;
  std::vector<std::pair<std::set<std::string>, std::set<std::string>>> partitions;
  std::set<std::string> crashed;
  std::map<std::pair<std::string, std::uint16_t>, class SimListener*> listeners;
  std::unordered_map<std::string, std::uint16_t> next_port;
  std::set<Wire*> wires;
  Tap tap;
  std::uint64_t carried = 0;
};

namespace {

/// A connection: two pipes and what both ends share.
struct Wire {
  Wire(std::shared_ptr<SimFabric::Impl> f, std::string a, std::string b)
      : fabric(std::move(f)), forward(fabric->runtime, *this), backward(fabric->runtime, *this),
        death(fabric->runtime, [](void* self) { static_cast<Wire*>(self)->reset(); }, this) {
    forward.from = backward.to = a;
    forward.to = backward.from = b;
    fabric->wires.insert(this);
    const SimLink& link = fabric->link(a, b);
    if (link.mean_lifetime > 0ns) {
      const double life = -std::log(1.0 - fabric->runtime.random_unit()) * to_seconds(link.mean_lifetime);
      death.arm(fabric->runtime.now() + from_seconds(life));
    }
  }
  ~Wire() { fabric->wires.erase(this); }

  void reset() {
    broken = true;
    for (Pipe* pipe : {&forward, &backward}) {
      pipe->timer.disarm();
      pipe->chunks.clear();
      pipe->bytes = pipe->deliverable = 0;
      pipe->readable.notify_all();
      pipe->writable.notify_all();
    }
  }

  std::shared_ptr<SimFabric::Impl> fabric;
  Pipe forward, backward;
  Timer death;
  bool broken = false;
};

void Pipe::schedule() {
  if (deliverable >= chunks.size() || owner.broken) return;
  if (owner.fabric->blocked(from, to)) return;  // healing schedules again
  timer.arm(std::max(chunks[deliverable].arrival, owner.fabric->runtime.now()));
}

void Pipe::arrived() {
  if (owner.fabric->blocked(from, to)) return;
  const TimePoint now = owner.fabric->runtime.now();
  while (deliverable < chunks.size() && chunks[deliverable].arrival <= now) ++deliverable;
  readable.notify_all();
  schedule();
}

class SimConnection final : public RawConnection {
 public:
  SimConnection(std::shared_ptr<Wire> wire, bool dialler, Multiaddr local, Multiaddr remote)
      : wire_(std::move(wire)), in_(dialler ? wire_->backward : wire_->forward), out_(dialler ? wire_->forward : wire_->backward),
        local_(std::move(local)), remote_(std::move(remote)) {}
  ~SimConnection() override { close(); }

  Task<Result<std::size_t>> read_some(MutableBytes into) override {
    const auto wire = wire_;
    for (;;) {
      if (wire->broken) co_return Error(cohive::Errc::closed, "connection reset");
      if (closed_) co_return Error(cohive::Errc::closed, remote_.text());
      if (in_.deliverable > 0) co_return take(into);
      co_await in_.readable.wait();
    }
  }

  Task<Result<>> write_all(std::span<const ByteView> buffers) override {
    const auto wire = wire_;
    for (ByteView buffer : buffers) {
      while (!buffer.empty()) {
        if (wire->broken || out_.reader_gone) co_return Error(cohive::Errc::closed, "connection reset");
        if (closed_) co_return Error(cohive::Errc::closed, remote_.text());
        if (out_.bytes >= kInFlight) {
          co_await out_.writable.wait();
          continue;
        }
        const std::size_t size = std::min(buffer.size(), kInFlight - out_.bytes);
        if (!send(buffer.first(size))) co_return Error(cohive::Errc::closed, "connection reset");
        buffer = buffer.subspan(size);
      }
    }
    co_return ok();
  }

  void close() noexcept override {
    if (closed_) return;
    closed_ = true;
    in_.reader_gone = true;
    if (!wire_->broken) {
      out_.finished = true;
      put({{}, 0, arrival_after(0)});  // the FIN: an empty chunk
    }
    in_.readable.notify_all();
    in_.writable.notify_all();
    out_.writable.notify_all();
  }
  const Multiaddr& local_address() const override { return local_; }
  const Multiaddr& remote_address() const override { return remote_; }

 private:
  std::size_t take(MutableBytes into) {
    std::size_t total = 0;
    while (in_.deliverable > 0 && total < into.size()) {
      Pipe::Chunk& chunk = in_.chunks.front();
      if (chunk.bytes.empty()) break;  // FIN stays: every later read ends too
      const std::size_t count = std::min(into.size() - total, chunk.bytes.size() - chunk.offset);
      std::memcpy(into.data() + total, chunk.bytes.data() + chunk.offset, count);
      chunk.offset += count;
      total += count;
      in_.bytes -= count;
      if (chunk.offset == chunk.bytes.size()) {
        in_.chunks.pop_front();
        --in_.deliverable;
      }
    }
    if (total > 0) in_.writable.notify_all();
    return total;
  }

  bool send(ByteView bytes) {
    auto& fabric = *wire_->fabric;
    if (fabric.tap && !fabric.tap(out_.from, out_.to, bytes)) {
      wire_->reset();
      return false;
    }
    fabric.carried += bytes.size();
    out_.bytes += bytes.size();
    put({to_bytes(bytes), 0, arrival_after(bytes.size())});
    return true;
  }

  TimePoint arrival_after(std::size_t size) {
    auto& fabric = *wire_->fabric;
    const SimLink& link = fabric.link(out_.from, out_.to);
    const TimePoint start = std::max(fabric.runtime.now(), out_.free_at);
    out_.free_at = link.bandwidth > 0 ? start + from_seconds(static_cast<double>(size) / link.bandwidth) : start;
    out_.last_arrival = std::max(out_.last_arrival, out_.free_at + fabric.delay(link));
    return out_.last_arrival;
  }

  void put(Pipe::Chunk chunk) {
    out_.chunks.push_back(std::move(chunk));
    if (out_.deliverable + 1 == out_.chunks.size()) out_.schedule();
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
  SimListener(std::shared_ptr<SimFabric::Impl> fabric, std::string ip, std::uint16_t port)
      : fabric_(std::move(fabric)), key_(ip, port), address_(Multiaddr::from_ip_tcp(ip, port).value()),
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
  std::pair<std::string, std::uint16_t> key_;
  Multiaddr address_;
  std::deque<std::unique_ptr<RawConnection>> waiting_;
  Condition ready_;
  bool closed_ = false;
};

namespace {

class SimMachine final : public Network {
 public:
  SimMachine(std::shared_ptr<SimFabric::Impl> fabric, std::string ip) : fabric_(std::move(fabric)), ip_(std::move(ip)) {}
  Runtime& runtime() override { return fabric_->runtime; }
  bool plaintext() const override { return fabric_->plaintext; }

  Result<std::unique_ptr<Listener>> listen(const Multiaddr& address) override {
    const auto endpoint = address.tcp_endpoint();
    if (!endpoint || endpoint->host_code != Multiaddr::ip4) return Error(Errc::address_unsupported, address.text());
    if (!address.is_unspecified() && endpoint->host != ip_)
      return Error(cohive::Errc::io, "cannot listen on " + address.text() + ": not an address of this machine");
    const std::uint16_t port = endpoint->port ? endpoint->port : new_port();
    if (fabric_->listeners.contains({ip_, port})) return Error(Errc::address_in_use, address.text());
    return std::unique_ptr<Listener>(std::make_unique<SimListener>(fabric_, ip_, port));
  }

  Task<Result<std::unique_ptr<RawConnection>>> dial(Multiaddr address, Deadline deadline) override {
    const auto fabric = fabric_;
    const auto endpoint = address.tcp_endpoint();
    if (!endpoint) co_return Error(Errc::address_unsupported, address.text());
    const std::string ip = ip_;
    const SimLink link = fabric->link(ip, endpoint->host);
    const Duration there = fabric->delay(link), back = fabric->delay(link);
    if (fabric->blocked(ip, endpoint->host)) {
      if (deadline.is_never()) co_return Error(Errc::dial_failed, address.text() + ": unreachable");
      co_await fabric->runtime.sleep_until(deadline.at());
      co_return Error(cohive::Errc::timeout, "connecting");
    }
    if (fabric->runtime.now() + there + back > deadline.at()) {
      co_await fabric->runtime.sleep_until(deadline.at());
      co_return Error(cohive::Errc::timeout, "connecting");
    }
    co_await fabric->runtime.sleep_for(there);
    const auto found = fabric->listeners.find({endpoint->host, endpoint->port});
    if (found == fabric->listeners.end() || fabric->runtime.random_unit() < link.connect_failure) {
      co_await fabric->runtime.sleep_for(back);
      co_return Error(Errc::dial_failed, address.text() + ": connection refused");
    }
    const Multiaddr local = Multiaddr::from_ip_tcp(ip, new_port()).value();
    auto wire = std::make_shared<Wire>(fabric, ip, endpoint->host);
    auto ours = std::make_unique<SimConnection>(wire, true, local, address.without_peer());
    found->second->offer(std::make_unique<SimConnection>(wire, false, address.without_peer(), local));
    co_await fabric->runtime.sleep_for(back);
    co_return std::unique_ptr<RawConnection>(std::move(ours));
  }

  Task<Result<std::vector<Multiaddr>>> resolve(Multiaddr address, Deadline) override {
    if (address.has(Multiaddr::dns) || address.has(Multiaddr::dns4) || address.has(Multiaddr::dnsaddr))
      co_return Error(Errc::resolve_failed, address.text());
    co_return std::vector<Multiaddr>{std::move(address)};
  }

 private:
  std::uint16_t new_port() {
    std::uint16_t& next = fabric_->next_port[ip_];
    do {
      next = next < kFirstPort ? kFirstPort : static_cast<std::uint16_t>(next + 1);
    } while (fabric_->listeners.contains({ip_, next}) || next < kFirstPort);
    return next;
  }
  std::shared_ptr<SimFabric::Impl> fabric_;
  std::string ip_;
};

}  // namespace

SimFabric::SimFabric(SimRuntime& runtime, SimLink defaults, bool plaintext)
    : impl_(std::make_shared<Impl>(runtime, defaults, plaintext)) {}
SimFabric::~SimFabric() = default;

SimRuntime& SimFabric::runtime() noexcept { return impl_->runtime; }

std::unique_ptr<Network> SimFabric::add_machine() {
  const std::uint32_t n = ++impl_->machines;
  const std::string ip = "10." + std::to_string(n >> 16 & 255) + "." + std::to_string(n >> 8 & 255) + "." + std::to_string(n & 255);
  return std::make_unique<SimMachine>(impl_, ip);
}

void SimFabric::set_link(const std::string& a, const std::string& b, SimLink link) { impl_->links[std::minmax(a, b)] = link; }
void SimFabric::set_default_link(SimLink link) { impl_->default_link = link; }

void SimFabric::partition(const std::set<std::string>& a, const std::set<std::string>& b) { impl_->partitions.emplace_back(a, b); }

void SimFabric::heal() {
  impl_->partitions.clear();
  for (Wire* wire : impl_->wires) {
    wire->forward.schedule();
    wire->backward.schedule();
  }
}

void SimFabric::crash(const std::string& ip) { impl_->crashed.insert(ip); }

void SimFabric::kill(const std::string& ip) {
  const auto wires = impl_->wires;
  for (Wire* wire : wires)
    if (wire->forward.from == ip || wire->forward.to == ip) wire->reset();
  for (auto it = impl_->listeners.begin(); it != impl_->listeners.end();) {
    auto* listener = it->second;
    const bool gone = it->first.first == ip;
    ++it;
    if (gone) listener->close();
  }
}

void SimFabric::set_tap(Tap tap) { impl_->tap = std::move(tap); }
std::uint64_t SimFabric::bytes_carried() const noexcept { return impl_->carried; }
std::size_t SimFabric::open_connections() const noexcept { return impl_->wires.size(); }

}  // namespace cohive::transport
