#include "circuit_transport.hpp"

#include "circuit_connection.hpp"
#include "circuit_message.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::p2p {
namespace {

class CircuitTransport final : public transport::Transport {
 public:
  CircuitTransport(Self& self, ConnectionTable& table, Dialler& dialler)
      : self_(self), table_(table), dialler_(dialler) {}

  bool handles(const Multiaddr& address) const override {
    const auto parts = parse_circuit(address);
    return parts && (table_.direct(parts->relay) || self_.endpoint(parts->relay_address));
  }

  Task<Result<transport::ConnectionPtr>> dial(Multiaddr address, transport::DialOptions options) override {
    const auto parts = parse_circuit(address);
    const auto target = options.expected ? options.expected : parts ? parts->target : std::nullopt;
    if (!parts || !target || *target == parts->relay || parts->relay == self_.id)
      co_return Error(transport::Errc::address_unsupported, address.text());
    auto stream = co_await ask(*parts, *target, options.deadline);
    if (!stream) co_return stream.error().with_context(address.without_peer().text());
    co_return co_await within(self_.runtime, options.deadline,
                              transport::upgrade(self_.circuit_upgrader, std::move(*stream), options.role, *target),
                              "handshake");
  }

  Result<std::unique_ptr<transport::ConnectionListener>> listen(const Multiaddr& address) override {
    return Error(transport::Errc::address_unsupported, address.text() + ": relays are found, not listened on");
  }

 private:
  using Raw = std::unique_ptr<transport::RawConnection>;

  /// The circuit, once the relay and the target have agreed to it.
  Task<Result<Raw>> ask(CircuitAddress parts, PeerId target, Deadline deadline) {
    if (!table_.direct(parts.relay)) CO_TRY(co_await reach(parts, deadline));
    const ConnectionEntryPtr relay = table_.direct(parts.relay);
    if (!relay) co_return Error(Errc::relay_refused, parts.relay, "it is connected through a relay itself");
    CO_TRY(auto stream, co_await open_on(relay, kHopProtocol, deadline));
    proto::Hop request;
    request.set_type(proto::Hop::CONNECT);
    request.mutable_peer()->set_id(target.binary());
    CO_TRY(const auto reply, co_await ask_relay(*stream, std::move(request), deadline));
    const auto& connection = *relay->connection;
    co_return Raw(std::make_unique<CircuitConnection>(std::move(stream), limit_of(reply.limit()),
                                                      connection.local_address(),
                                                      circuit_through(connection.remote_address(), parts.relay)));
  }

  /// A name in the address may lead where the peer that announced it could have been: not from outside to the inside.
  Task<Result<>> reach(const CircuitAddress& parts, Deadline deadline) {
    const bool outside = parts.relay_address.scope() == Multiaddr::Scope::public_;
    KnownAddress known{parts.relay_address, KnownAddress::Source::announced,
                       outside ? Multiaddr::Scope::public_ : Multiaddr::Scope::loopback};
    co_return co_await dialler_.connect_by(parts.relay, std::move(known), deadline);
  }

  Self& self_;
  ConnectionTable& table_;
  Dialler& dialler_;
};

}  // namespace

std::unique_ptr<transport::Transport> make_circuit_transport(Self& self, ConnectionTable& table, Dialler& dialler) {
  return std::make_unique<CircuitTransport>(self, table, dialler);
}

}  // namespace cohive::p2p
