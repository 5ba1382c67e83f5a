#include "cohive/p2p/announce.hpp"

#include <algorithm>
#include <set>

#include "cohive/core/errors.hpp"
#include "cohive/core/network_of.hpp"
#include "cohive/core/try.hpp"
#include "transport_kinds.hpp"

namespace cohive::p2p {
namespace {

constexpr std::string_view kCircuit = "/p2p-circuit";

Error nobody_can_dial(const Multiaddr& address, const std::string& why) {
  return Error(cohive::Errc::invalid_argument, address.text() + " cannot be announced: " + why);
}

/// Why no machine can be reached at an IP address of 4 or 16 bytes; empty when one can.
std::string objection_to(const std::string& ip) {
  const auto byte = [&ip](std::size_t i) { return static_cast<unsigned char>(ip[i]); };
  if (std::ranges::all_of(ip, [](char c) { return c == 0; }) || (ip.size() == 4 && byte(0) == 0))
    return "it says where to listen, not where to dial; name the address at which other machines see this one";
  if (ip.size() == 4 && byte(0) >= 224) return "no machine has this address";  // multicast, reserved, broadcast
  if (ip.size() == 16 && byte(0) == 0xff) return "no machine has this address";
  if (ip.size() == 16 && byte(0) == 0xfe && (byte(1) & 0xc0) == 0x80)
    return "a link-local address says nothing without the interface";
  return {};
}

/// For an address without a relay and without a peer id.
Result<> check_direct(const Multiaddr& address, const ReadEndpoint& endpoint) {
  if (address.has(Multiaddr::dnsaddr))
    return nobody_can_dial(address,
                           "peers do not follow a dnsaddr that another peer names; write "
                           "/dns4/NAME/tcp/PORT, and give the dnsaddr to those who join");
  if (!endpoint(address))
    return nobody_can_dial(address, "peers dial by TCP; write for example /ip4/203.0.113.7/tcp/31337");
  const std::string why = objection_to(networks_of(address).host);
  if (networks_of(address).empty() || why.empty()) return ok();  // this machine, a name
  return nobody_can_dial(address, why);
}

/// Whether a listener may be meant by an announced address: by the kind of IP address, and not one of this machine
/// alone for an address elsewhere.
bool may_mean(const Multiaddr& announced, const Multiaddr& listener) {
  const auto code = announced.first_code();
  const bool wants_ip4 = code == Multiaddr::ip4 || code == Multiaddr::dns4;
  const bool wants_ip6 = code == Multiaddr::ip6 || code == Multiaddr::dns6;
  if ((wants_ip4 && listener.first_code() != Multiaddr::ip4) || (wants_ip6 && listener.first_code() != Multiaddr::ip6))
    return false;
  const auto loopback = Multiaddr::Scope::loopback;
  return listener.scope() != loopback || announced.scope() == loopback;
}

/// The address at the ports of the listeners that it may mean.
std::set<Multiaddr> at_ports_of(const std::vector<Multiaddr>& bound, const Multiaddr& announced) {
  std::set<Multiaddr> fitting, all;
  for (const auto& listener : bound) {
    const Multiaddr address = listener.with_host_of(announced);
    if (!address.same_protocols(announced)) continue;
    all.insert(address);
    if (may_mean(announced, listener)) fitting.insert(address);
  }
  return fitting.empty() ? all : fitting;
}

}  // namespace

std::optional<transport::Endpoint> endpoint_over_network(const Multiaddr& address) {
  for (const TransportKind& kind : kTransports)
    if (const auto endpoint = kind.endpoint(address)) return endpoint;
  return std::nullopt;
}

Result<> check_announced(const Multiaddr& address, const std::optional<PeerId>& self, const ReadEndpoint& endpoint) {
  const Multiaddr plain = address.without_peer();
  if (const auto named = address.peer(); named && self && *named != *self)
    return nobody_can_dial(address, "it ends with the id of another peer; this one is " + self->text());
  const std::string text = plain.text();
  const auto circuit = text.find(kCircuit);
  if (circuit == text.npos) return check_direct(plain, endpoint);
  if (circuit + kCircuit.size() != text.size() || circuit == 0)
    return nobody_can_dial(address, "a way through a relay is RELAY/p2p/<id of the relay>/p2p-circuit");
  TRY(const auto relay, Multiaddr::from_text(text.substr(0, circuit)));
  const auto found = endpoint(relay);
  if (!relay.peer() || (self && *relay.peer() == *self) || !found || found->port == 0)
    return nobody_can_dial(address, "a way through a relay is RELAY/p2p/<id of the relay>/p2p-circuit");
  return check_direct(relay.without_peer(), endpoint);
}

Result<std::vector<Multiaddr>> fill_ports(const std::vector<Multiaddr>& given, const PeerId& self,
                                          const std::vector<Multiaddr>& bound, const ReadEndpoint& endpoint) {
  std::vector<Multiaddr> result;
  const auto add = [&result](Multiaddr address) {
    if (std::ranges::find(result, address) == result.end()) result.push_back(std::move(address));
  };
  for (const auto& address : given) {
    TRY(check_announced(address, self, endpoint));
    const Multiaddr plain = address.without_peer();
    if (plain.is_circuit() || endpoint(plain)->port != 0) {
      add(plain);
      continue;
    }
    const auto addresses = at_ports_of(bound, plain);
    if (addresses.empty())
      return nobody_can_dial(address, "this peer does not listen, so that there is no port to put in for 0");
    for (const auto& one : addresses) add(one);
  }
  return result;
}

}  // namespace cohive::p2p
