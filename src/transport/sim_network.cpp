#include "cohive/transport/sim_network.hpp"

#include <list>

#include "cohive/core/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "sim_fabric.hpp"

namespace cohive::transport {
namespace sim {
namespace {

constexpr std::size_t kSimBacklog = 1024;
/// What an operating system tries before it gives up.
constexpr Duration kConnectTimeout = 127s;

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
      const auto pace = wire_->fabric->pace(out_.from, out_.to);
      if (out_.in_flight >= pace.ahead) {
        co_await out_.writable.wait();
        continue;
      }
      const std::size_t size = std::min({left, pace.ahead - out_.in_flight, pace.piece});
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
  PathState path() const override {
    const Duration both = out_.path_delay + out_.line_delay + in_.path_delay + in_.line_delay;
    return {both, both, {}};
  }

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
      if (!tap(fabric.text_of(out_.from), fabric.text_of(out_.to), bytes)) wire_->reset();
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
        address_(fabric_->address_of(machine, port)),
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
  bool full() const { return waiting_.size() >= kSimBacklog; }
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

/// A machine with an address of one family or of both.
class SimMachine final : public Network {
 public:
  SimMachine(std::shared_ptr<SimFabric::Impl> fabric, Machine ip4, Machine ip6 = 0)
      : fabric_(std::move(fabric)), ip4_(ip4), ip6_(ip6) {}
  Runtime& runtime() override { return fabric_->runtime; }

  Result<std::unique_ptr<Listener>> listen(const Multiaddr& address) override {
    const auto endpoint = address.tcp_endpoint();
    const Machine own = own_address(address);
    if (!endpoint || own == 0) return Error(Errc::address_unsupported, address.text());
    if (!address.is_unspecified() && fabric_->number_of(endpoint->host) != own)
      return Error(cohive::Errc::io, "cannot listen on " + address.text() + ": not an address of this machine");
    const std::uint16_t port = endpoint->port ? endpoint->port : fabric_->new_port(own);
    if (fabric_->listeners.contains({own, port})) return Error(Errc::address_in_use, address.text());
    return std::unique_ptr<Listener>(std::make_unique<SimListener>(fabric_, own, port));
  }

  using Network::dial;
  Task<Result<std::unique_ptr<RawConnection>>> dial(Multiaddr address, std::optional<Multiaddr> from,
                                                    Deadline deadline) override {
    const Machine own = own_address(address);
    const auto endpoint = from ? from->tcp_endpoint() : std::nullopt;
    return connect(fabric_, own, endpoint ? endpoint->port : 0, address.without_peer(), deadline);
  }

 private:
  /// Ours of the same family; 0: we have none.
  Machine own_address(const Multiaddr& address) const {
    if (address.first_code() == Multiaddr::ip4) return ip4_;
    return address.first_code() == Multiaddr::ip6 ? ip6_ : 0;
  }

  static Task<Result<std::unique_ptr<RawConnection>>> connect(std::shared_ptr<SimFabric::Impl> fabric, Machine from,
                                                              std::uint16_t port, Multiaddr address,
                                                              Deadline deadline) {
    SimRuntime& runtime = fabric->runtime;
    const auto endpoint = address.tcp_endpoint();
    if (!endpoint) co_return Error(Errc::address_unsupported, address.text());
    if (from == 0) co_return system_error(Errc::unreachable, ENETUNREACH, address.text());
    fabric->open_hole(from, fabric->number_of(endpoint->host));
    const Machine to = fabric->reached_at(from, fabric->number_of(endpoint->host));
    const SimLink link = fabric->link(from, to);
    const Duration there = fabric->delay(link), back = fabric->delay(link);
    const bool fails = link.connect_failure > 0 && runtime.random_unit() < link.connect_failure;
    const Deadline limit = deadline.min(runtime.after(kConnectTimeout));
    const bool lost = to == 0 || limit.passed(runtime.now() + there + back);
    if (!lost && !fabric->blocked(from, to)) co_await runtime.sleep_for(there);
    if (lost || fabric->blocked(from, to)) {
      co_await runtime.sleep_until(limit.at());
      co_return Error(cohive::Errc::timeout, "connecting to " + address.text());
    }
    const auto found = fabric->listeners.find({to, endpoint->port});
    if (fails || found == fabric->listeners.end() || found->second->full()) {
      co_await runtime.sleep_for(back);
      co_return system_error(Errc::refused, ECONNREFUSED, address.text());
    }
    if (port == 0) port = fabric->new_port(from);
    const Multiaddr local = fabric->address_of(from, port);
    const Multiaddr seen = fabric->address_of(fabric->seen_as(from, to), port);
    auto wire = std::make_shared<Wire>(fabric, from, to);
    auto ours = std::make_unique<SimConnection>(wire, true, local, address);
    found->second->offer(std::make_unique<SimConnection>(wire, false, found->second->address(), seen));
    co_await runtime.sleep_for(back);
    co_return std::unique_ptr<RawConnection>(std::move(ours));
  }

  std::shared_ptr<SimFabric::Impl> fabric_;
  Machine ip4_, ip6_;
};

}  // namespace
}  // namespace sim

SimFabric::SimFabric(SimRuntime& runtime, SimLink defaults) : impl_(std::make_shared<Impl>(runtime, defaults)) {}
SimFabric::~SimFabric() = default;

SimRuntime& SimFabric::runtime() noexcept {
  return impl_->runtime;
}

std::unique_ptr<Network> SimFabric::add_machine() {
  return std::make_unique<sim::SimMachine>(impl_, ++impl_->last_machine);
}
std::unique_ptr<Network> SimFabric::add_machine(const std::string& ip, const std::string& other) {
  Machine ip4 = 0, ip6 = 0;
  for (const auto& one : {ip, other})
    if (!one.empty()) (one.find(':') == std::string::npos ? ip4 : ip6) = impl_->add_address(one);
  return std::make_unique<sim::SimMachine>(impl_, ip4, ip6);
}

void SimFabric::set_nat(const std::string& inside, const std::string& outside, bool lets_in) {
  impl_->nats[impl_->number_of(inside)] = {impl_->add_address(outside), lets_in};
}

void SimFabric::let_punch(const std::string& inside) {
  impl_->punchable.insert(impl_->number_of(inside));
}

void SimFabric::set_link(const std::string& a, const std::string& b, SimLink link) {
  impl_->links[Impl::pair_of(impl_->number_of(a), impl_->number_of(b))] = link;
}
void SimFabric::set_default_link(SimLink link) {
  impl_->default_link = link;
}

void SimFabric::set_line(const std::string& ip, BandwidthLimits rates) {
  impl_->lines[impl_->number_of(ip)].rates = rates;
}

void SimFabric::partition(const std::set<std::string>& a, const std::set<std::string>& b) {
  impl_->partitions.emplace_back(impl_->numbers_of(a), impl_->numbers_of(b));
}

void SimFabric::heal() {
  impl_->partitions.clear();
  impl_->wires.for_each([](sim::Wire& wire) {
    wire.forward.schedule();
    wire.backward.schedule();
  });
}

void SimFabric::crash(const std::string& ip) {
  impl_->crashed.insert(impl_->number_of(ip));
}

void SimFabric::kill(const std::string& ip) {
  const Machine machine = impl_->number_of(ip);
  impl_->wires_of[machine].for_each([](sim::WireEnd& end) { end.wire->reset(); });
  std::vector<sim::SimListener*> gone;
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
