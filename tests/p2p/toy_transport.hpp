// A second transport for tests: byte connections of a simulated network at the addresses of QUIC. A machine's TCP port
// 4002 is its /ip4/10.0.0.1/udp/4002/quic-v1.
#pragma once

#include "cohive/core/combine.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/upgrade.hpp"

namespace cohive::p2p {

/// The address below; nullopt when an address is no toy's.
inline std::optional<Multiaddr> below_toy(const Multiaddr& address) {
  static const std::string kEnd = "/quic-v1";
  std::string text = address.without_peer().text();
  const auto udp = text.find("/udp/");
  if (udp == text.npos || !text.ends_with(kEnd)) return std::nullopt;
  text.resize(text.size() - kEnd.size());
  auto below = Multiaddr::from_text(text.replace(udp, 5, "/tcp/"));
  return below ? std::optional(std::move(*below)) : std::nullopt;
}
inline Multiaddr as_toy(const Multiaddr& below) {
  std::string text = below.text();
  return Multiaddr::from_text(text.replace(text.find("/tcp/"), 5, "/udp/") + "/quic-v1").value();
}

class ToyConnection final : public transport::RawConnection {
 public:
  explicit ToyConnection(std::unique_ptr<transport::RawConnection> below)
      : below_(std::move(below)), local_(as_toy(below_->local_address())), remote_(as_toy(below_->remote_address())) {}
  Task<Result<std::size_t>> read_some(MutableBytes into) override { return below_->read_some(into); }
  Task<Result<>> write_all(std::span<const ByteView> buffers) override { return below_->write_all(buffers); }
  void end_writing() noexcept override { below_->end_writing(); }
  void close() noexcept override { below_->close(); }
  const Multiaddr& local_address() const override { return local_; }
  const Multiaddr& remote_address() const override { return remote_; }

 private:
  std::unique_ptr<transport::RawConnection> below_;
  Multiaddr local_, remote_;
};

class PendingToy final : public transport::PendingConnection {
 public:
  PendingToy(transport::Upgrader upgrader, std::unique_ptr<transport::RawConnection> below)
      : upgrader_(std::move(upgrader)),
        raw_(std::make_unique<ToyConnection>(std::move(below))),
        remote_(raw_->remote_address()) {}
  const Multiaddr& remote_address() const override { return remote_; }
  Task<Result<transport::ConnectionPtr>> finish() override {
    return transport::upgrade(upgrader_, std::move(raw_), transport::Role::responder, std::nullopt);
  }

 private:
  transport::Upgrader upgrader_;
  std::unique_ptr<transport::RawConnection> raw_;
  Multiaddr remote_;
};

class ToyListener final : public transport::ConnectionListener {
 public:
  ToyListener(transport::Upgrader upgrader, std::unique_ptr<transport::Listener> below)
      : upgrader_(std::move(upgrader)), below_(std::move(below)), address_(as_toy(below_->address())) {}
  Task<Result<std::unique_ptr<transport::PendingConnection>>> accept() override {
    auto raw = co_await below_->accept();
    if (!raw) co_return raw.error();
    co_return std::make_unique<PendingToy>(upgrader_, std::move(*raw));
  }
  const Multiaddr& address() const override { return address_; }
  std::vector<Multiaddr> dialable_addresses() const override { return {address_}; }
  void close() noexcept override { below_->close(); }

 private:
  transport::Upgrader upgrader_;
  std::unique_ptr<transport::Listener> below_;
  Multiaddr address_;
};

class ToyTransport final : public transport::Transport {
 public:
  ToyTransport(transport::Network& network, transport::Upgrader upgrader)
      : network_(network), upgrader_(std::move(upgrader)) {}
  bool handles(const Multiaddr& address) const override { return below_toy(address).has_value(); }
  std::optional<transport::Endpoint> endpoint(const Multiaddr& address) const override {
    const auto below = below_toy(address);
    if (!below) return std::nullopt;
    return transport::Endpoint{.port = below->tcp_endpoint()->port};
  }
  Task<Result<transport::ConnectionPtr>> dial(Multiaddr address, transport::DialOptions options) override {
    auto raw = co_await network_.dial(*below_toy(address), options.deadline);
    if (!raw) co_return raw.error();
    co_return co_await within(
        network_.runtime(), options.deadline,
        transport::upgrade(upgrader_, std::make_unique<ToyConnection>(std::move(*raw)), options.role, options.expected),
        "handshake");
  }
  Result<std::unique_ptr<transport::ConnectionListener>> listen(const Multiaddr& address) override {
    auto below = network_.listen(*below_toy(address));
    if (!below) return below.error();
    return std::unique_ptr<transport::ConnectionListener>(std::make_unique<ToyListener>(upgrader_, std::move(*below)));
  }

 private:
  transport::Network& network_;
  transport::Upgrader upgrader_;
};

inline transport::MakeTransport toy_transport(transport::Network& network) {
  return [&network](const transport::Upgrader& upgrader) { return std::make_unique<ToyTransport>(network, upgrader); };
}

}  // namespace cohive::p2p
