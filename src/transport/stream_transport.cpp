#include "cohive/transport/stream_transport.hpp"

#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/resolver.hpp"

namespace cohive::transport {
namespace {

constexpr std::size_t kMinSendBuffer = 4 * 1024;  // under a cap on upload
constexpr double kBufferedSeconds = 0.1;

/// Bytes that wait below the streams delay what is more urgent, under a cap for long.
Upgrader fitted(const Upgrader& upgrader, double upload) {
  if (upload <= 0) return upgrader;
  TransportOptions options = upgrader.options();
  const auto buffered = static_cast<std::size_t>(upload * kBufferedSeconds);
  options.send_buffer = std::min(options.send_buffer, std::max(kMinSendBuffer, buffered));
  return upgrader.with_options(std::move(options));
}

class PendingStream final : public PendingConnection {
 public:
  PendingStream(Upgrader upgrader, std::unique_ptr<RawConnection> raw)
      : upgrader_(std::move(upgrader)), raw_(std::move(raw)), remote_(raw_->remote_address()) {}
  const Multiaddr& remote_address() const override { return remote_; }
  Task<Result<ConnectionPtr>> finish() override {
    return upgrade(upgrader_, std::move(raw_), Role::responder, std::nullopt);
  }

 private:
  Upgrader upgrader_;
  std::unique_ptr<RawConnection> raw_;
  Multiaddr remote_;
};

/// Where a transport listens: it dials from these ports.
using Bound = std::vector<Multiaddr>;

class StreamListener final : public ConnectionListener {
 public:
  StreamListener(Upgrader upgrader, std::unique_ptr<Listener> inner, std::shared_ptr<Bound> bound)
      : upgrader_(std::move(upgrader)), inner_(std::move(inner)), bound_(std::move(bound)) {
    bound_->push_back(inner_->address());
  }
  ~StreamListener() override { close(); }
  Task<Result<std::unique_ptr<PendingConnection>>> accept() override {
    auto raw = co_await inner_->accept();
    if (!raw) co_return raw.error();
    co_return std::make_unique<PendingStream>(upgrader_, std::move(*raw));
  }
  const Multiaddr& address() const override { return inner_->address(); }
  std::vector<Multiaddr> dialable_addresses() const override { return inner_->dialable_addresses(); }
  void close() noexcept override {
    std::erase(*bound_, inner_->address());
    inner_->close();
  }

 private:
  Upgrader upgrader_;
  std::unique_ptr<Listener> inner_;
  std::shared_ptr<Bound> bound_;
};

class StreamTransport final : public Transport {
 public:
  StreamTransport(Network& network, Upgrader upgrader) : network_(network), upgrader_(std::move(upgrader)) {}

  bool handles(const Multiaddr& address) const override { return stream_endpoint(address) && !is_name(address); }
  std::optional<Endpoint> endpoint(const Multiaddr& address) const override { return stream_endpoint(address); }

  Task<Result<ConnectionPtr>> dial(Multiaddr address, DialOptions options) override {
    std::optional<Multiaddr> from;
    if (options.from_listen_port && upgrader_.options().dial_from_listen_port) from = source_for(address);
    auto connection = co_await dial_from(address, from, options);
    // Only we know how to settle which side begins when both did. The second connection is one that only we dialled.
    if (!connection && from && options.role == Role::initiator && is_confused(connection.error()))
      connection = co_await dial_from(std::move(address), std::nullopt, options);
    co_return connection;
  }

  Result<std::unique_ptr<ConnectionListener>> listen(const Multiaddr& address) override {
    auto listener = network_.listen(address);
    if (!listener) return listener.error();
    return std::unique_ptr<ConnectionListener>(
        std::make_unique<StreamListener>(upgrader_, std::move(*listener), bound_));
  }

  BandwidthLimits limits() const override { return network_.limits(); }
  std::size_t max_connections() const override { return network_.max_connections(); }

 private:
  Task<Result<ConnectionPtr>> dial_from(Multiaddr address, std::optional<Multiaddr> from, DialOptions options) {
    auto raw = co_await network_.dial(address, from, options.deadline);
    if (!raw) co_return raw.error();
    const bool both = from && options.role == Role::initiator && same_port((*raw)->local_address(), *from);
    auto connection = co_await within(
        network_.runtime(), options.deadline,
        upgrade(upgrader_, std::move(*raw), both ? Role::either : options.role, options.expected), "handshake");
    if (!connection) co_return connection.error().with_context(address.text());
    co_return connection;
  }

  static bool same_port(const Multiaddr& a, const Multiaddr& b) {
    return a.value(Multiaddr::tcp) == b.value(Multiaddr::tcp);
  }
  static bool is_confused(const Error& error) {
    return error == Errc::both_began || error == Errc::handshake_failed || error == Errc::negotiation_failed;
  }

  /// The listener to dial from: of the same family, and not one of this machine alone for an address elsewhere.
  std::optional<Multiaddr> source_for(const Multiaddr& target) const {
    const bool to_loopback = target.scope() == Multiaddr::Scope::loopback;
    for (const Multiaddr& one : *bound_) {
      if (one.first_code() != target.first_code()) continue;
      if (one.is_unspecified() || (one.scope() == Multiaddr::Scope::loopback) == to_loopback) return one;
    }
    return std::nullopt;
  }

  Network& network_;
  Upgrader upgrader_;
  std::shared_ptr<Bound> bound_ = std::make_shared<Bound>();
};

}  // namespace

MakeTransport stream_transport(Network& network) {
  return [&network](const Upgrader& upgrader) {
    return std::make_unique<StreamTransport>(network, fitted(upgrader, network.limits().upload));
  };
}

/// IPv6 addresses are not translated, so that no router need forward one.
std::optional<Endpoint> stream_endpoint(const Multiaddr& address) {
  const auto endpoint = address.tcp_endpoint();
  if (!endpoint) return std::nullopt;
  return Endpoint{.port = endpoint->port, .mappable = endpoint->host_code == Multiaddr::ip4, .punchable = true};
}

}  // namespace cohive::transport
