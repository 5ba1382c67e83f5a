// The steps of one address, each of which needs the ones before it:
//   name -> tcp -> handshake -> identify -> ping -> link, dht -> clock, relay
// and then what the peers that were reached say about this machine:
//   port-map, dial-back, nat
#include "dht/doctor.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/p2p/probes.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/resolver.hpp"
#include "dht/kernel_link.hpp"
#include "dht/milliseconds.hpp"
#include "dht/node_ping.hpp"
#include "transport/detail/forwarding_network.hpp"

namespace cohive::tools {
namespace {

using Status = Finding::Status;

constexpr Duration kStep = 10s;  // one question to a peer
constexpr Duration kConnecting = 5s;
constexpr Duration kDialBack = 40s;  // a peer may try several addresses
// Peers whose word is taken on whether this machine can be reached, until one has reached it: each may have a bad line.
constexpr int kDialBackWitnesses = 3;
constexpr Duration kPortMapping = 4s, kLook = 100ms;
constexpr Duration kLookAround = 5s;  // for peers of other networks
constexpr std::size_t kMaxWitnesses = 12;
constexpr std::size_t kMaxAgent = 60, kMaxPeerText = 120;  // characters of a peer that are printed

Finding failed(std::string step, std::string text, std::string advice) {
  return {std::move(step), Status::failed, std::move(text), std::move(advice), nlohmann::json::object()};
}
Finding skipped(std::string step, std::string text) {
  return {std::move(step), Status::skipped, std::move(text), "", nlohmann::json::object()};
}

std::string port_of(const Multiaddr& address) {
  return address.value(Multiaddr::tcp).value_or("?");
}
std::string host_of(const Multiaddr& address) {
  return address.value(address.first_code()).value_or(address.text());
}

// ---- What to do

std::string advice_for_tcp(const Error& error, const Multiaddr& address) {
  if (error == transport::Errc::address_unsupported) return "use an address with /tcp/: no other kind is supported";
  if (error == cohive::Errc::timeout)
    return "a firewall drops what is sent there, or the machine is off: open TCP port " + port_of(address) +
           " in its firewall or security group, or forward it in its router";
  if (error == transport::Errc::refused)
    return "nothing listens at that port: check that the node runs there and that " + port_of(address) +
           " is its port; inside a container, publish the port";
  if (error == transport::Errc::unreachable)
    return "this machine has no way to that network: check its connection" +
           std::string(address.first_code() == Multiaddr::ip6 ? ", or use the peer's IPv4 address" : "");
  return "check that the node runs and can be reached from here";
}

std::string advice_for_handshake(const Error& error, const Multiaddr& address) {
  if (error == transport::Errc::peer_mismatch)
    return "correct what follows /p2p/ in the address; if the node should have kept its id, start it with its "
           "--identity-path";
  if (error == transport::Errc::protocol_not_supported)
    return "the node takes neither Noise nor TLS: allow one of the two there";
  if (error == cohive::Errc::timeout)
    return "what listens there says nothing: it is no libp2p node, or it hangs; check the port " + port_of(address);
  if (error == transport::Errc::handshake_failed || error == transport::Errc::decryption_failed)
    return "the encryption fails: something between the two machines changes what is sent, or the node's software is "
           "incompatible";
  return "no libp2p node listens there: check that " + port_of(address) +
         " is the node's port and not one of another service, such as its metrics";
}

std::string advice_for_circuit(const Error& error) {
  if (error == p2p::Errc::relay_refused)
    return "the relay does not serve that peer: check that the peer runs, that it names this relay in "
           "--trusted-relays and that the relay is not full";
  if (error == transport::Errc::peer_mismatch) return "correct what follows the last /p2p/ in the address";
  return "run this command with the address of the relay alone, the part before /p2p-circuit";
}

// ---- The examination

/// Remembers from which address of this machine each one was dialled last.
class SourceNotes final : public transport::ForwardingNetwork {
 public:
  using ForwardingNetwork::dial, ForwardingNetwork::ForwardingNetwork;
  Task<Result<std::unique_ptr<transport::RawConnection>>> dial(Multiaddr address, std::optional<Multiaddr> from,
                                                               Deadline deadline) override {
    auto connection = co_await ForwardingNetwork::dial(std::move(address), std::move(from), deadline);
    if (connection) sources_.insert_or_assign((*connection)->remote_address(), (*connection)->local_address());
    co_return connection;
  }
  /// Returns an empty address where none was dialled.
  Multiaddr source_of(const Multiaddr& remote) const {
    const auto found = sources_.find(remote);
    return found == sources_.end() ? Multiaddr() : found->second;
  }

 private:
  std::map<Multiaddr, Multiaddr> sources_;
};

class Doctor {
 public:
  Doctor(transport::Network& network, DoctorOptions options, FindingReport report)
      : network_(network),
        runtime_(network.runtime()),
        options_(std::move(options)),
        report_(std::move(report)),
        resolver_(transport::make_resolver(runtime_)),
        sources_(network),
        host_(sources_, KeyPair::generate_ed25519(), host_options(options_)) {}

  Task<bool> run() {
    if (auto started = host_.start(); !started) throw ErrorException(started.error());
    interfaces_ = host_.addresses();
    for (const auto& target : options_.targets) co_await examine(target);
    if (!met_.empty()) {
      co_await look_around();
      co_await examine_port_map();
      co_await examine_dial_back();
      examine_nat();
    }
    co_await host_.close();
    co_return healthy_;
  }

 private:
  /// A peer that was reached, and what it said.
  struct Met {
    PeerId id;
    Multiaddr remote;  ///< empty: through a relay
    p2p::PeerDescription said;
    bool serves(const std::string& protocol) const {
      return std::find(said.protocols.begin(), said.protocols.end(), protocol) != said.protocols.end();
    }
  };

  static p2p::HostOptions host_options(const DoctorOptions& options) {
    p2p::HostOptions result;
    result.listen = options.listen;
    result.routing_server = false;
    result.autonat = false;  // asked by hand
    result.use_relay = false;
    return result;
  }

  void report(const Multiaddr& target, Finding finding) {
    healthy_ &= finding.status != Status::failed;
    report_(target, finding);
  }
  Deadline soon() const { return runtime_.after(kStep); }

  // ---- One address

  Task<void> examine(Multiaddr target) {
    std::optional<PeerId> peer;
    if (target.is_circuit()) {
      peer = co_await examine_circuit(target);
    } else {
      const auto numeric = co_await examine_name(target);
      const auto reached = co_await examine_tcp(target, numeric);
      if (reached) peer = co_await examine_handshake(target, *reached);
    }
    if (!peer) co_return;
    const auto met = co_await examine_identify(target, *peer);
    if (!met) co_return;
    if (std::none_of(met_.begin(), met_.end(), [&](const Met& one) { return one.id == met->id; })) met_.push_back(*met);
    if (const auto trip = co_await examine_ping(target, *peer); trip && !target.is_circuit())
      examine_link(target, *trip);
    co_await examine_dht(target, *met);
    co_await examine_relay(target, *met);
  }

  Task<std::vector<Multiaddr>> examine_name(Multiaddr target) {
    if (!transport::is_name(target)) {
      report(target, skipped("name", "the address has no name to resolve"));
      co_return std::vector<Multiaddr>{target};
    }
    auto found = co_await resolver_->resolve(target, soon());
    if (!found) {
      report(target, failed("name", "the name " + host_of(target) + " does not resolve",
                            "check its spelling, and that this machine's name servers answer: getent hosts " +
                                host_of(target)));
      co_return std::vector<Multiaddr>();
    }
    Finding finding{"name", Status::ok, "", "", {{"addresses", nlohmann::json::array()}}};
    for (const auto& address : *found) {
      finding.text += (finding.text.empty() ? "" : ", ") + address.text();
      finding.details["addresses"].push_back(address.text());
    }
    report(target, std::move(finding));
    co_return std::move(*found);
  }

  /// Connects to each address that the name leads to; yields one that answers.
  Task<std::optional<Multiaddr>> examine_tcp(Multiaddr target, std::vector<Multiaddr> addresses) {
    std::optional<Multiaddr> reached;
    std::vector<Finding> missed;  // what to make of them depends on whether another address answers
    for (const auto& address : addresses) {
      if (address.is_circuit()) continue;
      const TimePoint start = runtime_.now();
      const auto connection = co_await network_.dial(address, runtime_.after(kConnecting));
      const double took = milliseconds(runtime_.now() - start);
      if (!connection) {
        Finding finding = failed("tcp", connection.error().message(), advice_for_tcp(connection.error(), address));
        finding.details["address"] = address.text();
        missed.push_back(std::move(finding));
        continue;
      }
      report(target, {"tcp",
                      Status::ok,
                      log::format("{} port {} answered in {:.1f} ms", host_of(address), port_of(address), took),
                      "",
                      {{"address", address.text()}, {"milliseconds", took}}});
      if (reached) continue;
      reached = address;
      local_ = (*connection)->local_address();
    }
    for (Finding& finding : missed) {
      if (reached) {  // a machine with IPv4 alone, say, reaches no IPv6 address of a name that has both
        finding.status = Status::skipped;
        finding.text += "; another address of the name answers";
      }
      report(target, std::move(finding));
    }
    co_return reached;
  }

  /// Yields the peer, connected to the host.
  Task<std::optional<PeerId>> examine_handshake(Multiaddr target, Multiaddr address) {
    const auto expected = address.peer() ? address.peer() : target.peer();
    auto connection = co_await shake_hands(address, expected);
    if (!connection) {
      report(target,
             failed("handshake", connection.error().message(), advice_for_handshake(connection.error(), address)));
      co_return std::nullopt;
    }
    const PeerId peer = (*connection)->peer();
    const std::string security((*connection)->security());
    co_await (*connection)->finish(Error(cohive::Errc::closed), runtime_.after(1s));
    // Again by way of the host, which everything after this step uses.
    const auto connected = co_await host_.connect(address.with_peer(peer), soon());
    if (!connected) {
      report(target, failed("handshake", connected.error().message(),
                            "the node takes one connection and not the next: it is full, or trims connections"));
      co_return std::nullopt;
    }
    report(target, {"handshake",
                    Status::ok,
                    security.substr(1) + (expected ? ", the peer proved its id" : ", the peer is " + peer.text()),
                    expected ? "" : "the full address is " + address.with_peer(peer).text(),
                    {{"security", security}, {"peer_id", peer.text()}}});
    co_return peer;
  }

  Task<Result<transport::ConnectionPtr>> shake_hands(Multiaddr address, std::optional<PeerId> expected) {
    auto raw = co_await network_.dial(address, runtime_.after(kConnecting));
    if (!raw) co_return raw.error();
    transport::Upgrader upgrader(runtime_, host_.identity(), host_.options().transport, host_.memory());
    co_return co_await transport::upgrade(std::move(upgrader), std::move(*raw), transport::Role::initiator, expected);
  }

  Task<std::optional<PeerId>> examine_circuit(Multiaddr target) {
    const auto connected = co_await host_.connect(target, soon());
    if (!connected) {
      report(target, failed("circuit", connected.error().message(), advice_for_circuit(connected.error())));
      co_return std::nullopt;
    }
    report(target, {"circuit",
                    Status::ok,
                    "the relay connects to the peer, which proved its id",
                    "",
                    {{"peer_id", connected->text()}}});
    co_return *connected;
  }

  Task<std::optional<Met>> examine_identify(Multiaddr target, PeerId peer) {
    auto said = co_await p2p::describe(host_, peer, soon());
    if (!said) {
      report(target, failed("identify", said.error().message(),
                            "the node ends connections at once or hangs: look into its log"));
      co_return std::nullopt;
    }
    const std::string agent = said->agent.empty() ? "unknown software" : log::quoted(said->agent, kMaxAgent);
    const std::string seen = said->observed ? said->observed->text() : "an address that it does not tell";
    report(target, {"identify",
                    Status::ok,
                    log::format("{}, {} protocols; it sees this machine at {}", agent, said->protocols.size(), seen),
                    "",
                    {{"agent", said->agent}, {"protocols", said->protocols}, {"observed", seen}}});
    const auto remote = host_.remote_address(peer);
    const bool direct = remote && !remote->is_circuit();
    co_return Met{peer, direct ? *remote : Multiaddr(), std::move(*said)};
  }

  /// Yields the round trip.
  Task<std::optional<Duration>> examine_ping(Multiaddr target, PeerId peer) {
    const auto trip = co_await p2p::ping(host_, peer, soon());
    if (!trip) {
      report(target, failed("ping", trip.error().message(), "the connection is bad or the node overloaded: try again"));
      co_return std::nullopt;
    }
    report(target, {"ping",
                    Status::ok,
                    log::format("a round trip takes {:.1f} ms", milliseconds(*trip)),
                    "",
                    {{"milliseconds", milliseconds(*trip)}}});
    co_return *trip;
  }

  /// What this machine's kernel allows at that round trip.
  void examine_link(const Multiaddr& target, Duration round_trip) {
    const bool within = local_.scope() == Multiaddr::Scope::loopback;
    report(target, within ? skipped("link", "the peer is on this machine")
                          : examine_kernel_link(read_kernel_link(local_), round_trip));
  }

  /// The call with which a node joins; the reply says what time it is there.
  Task<void> examine_dht(Multiaddr target, Met met) {
    const auto ping = co_await ping_node(host_, met.id, soon());
    if (!ping) {
      const bool none = ping.error() == transport::Errc::protocol_not_supported;
      const bool nonsense = ping.error() == cohive::Errc::malformed;
      report(target, failed("dht",
                            none       ? "the peer serves no DHT"
                            : nonsense ? "its reply makes no sense"
                                       : ping.error().message(),
                            none ? "give the address of a bootstrap node, or of another node that is no client"
                                 : "the node is overloaded, or its swarm takes authorized peers only"));
      co_return;
    }
    const auto& id = ping->node_id;
    report(target, id ? Finding{"dht", Status::ok, "DHT node " + id->hex(), "", {{"node_id", id->hex()}}}
                      : failed("dht", "the peer is a DHT client", "give the address of a bootstrap node"));
    examine_clock(target, *ping);
  }

  void examine_clock(const Multiaddr& target, const NodePing& ping) {
    if (!ping.clock_ahead) return report(target, skipped("clock", "the node does not tell the time"));
    const double ahead = -*ping.clock_ahead;
    Finding finding{"clock",
                    Status::ok,
                    log::format("the clocks agree within {:.1f} s", std::abs(ahead) + ping.seconds),
                    "",
                    {{"seconds_ahead", ahead}}};
    if (std::abs(ahead) > kClockTolerance) {
      finding.status = Status::failed;
      finding.text = log::format("this machine's clock is {:.1f} s {} that of the node", std::abs(ahead),
                                 ahead > 0 ? "ahead of" : "behind");
      finding.advice = "set the clock that is wrong by NTP (timedatectl set-ntp true): records expire by it";
    }
    report(target, std::move(finding));
  }

  Task<void> examine_relay(Multiaddr target, Met met) {
    if (!met.serves(p2p::kRelayProtocol)) co_return report(target, skipped("relay", "the peer does not relay"));
    if (met.remote.empty()) co_return report(target, skipped("relay", "asked of peers that are connected directly"));
    const auto granted = co_await p2p::ask_reservation(host_, met.id, soon());
    if (!granted) {
      report(target, failed("relay", granted.error().message(),
                            "the relay is full or serves others only: peers that need one need another one"));
      co_return;
    }
    const std::string bytes = granted->bytes > 0
                                  ? log::format("{:.1f} MB each way", static_cast<double>(granted->bytes) / 1e6)
                                  : "any number of bytes";
    const std::string time =
        granted->duration > 0s ? log::format("for {:.0f} s", to_seconds(granted->duration)) : "for any time";
    report(target, {"relay",
                    Status::ok,
                    "it reserves for peers, and carries " + bytes + " " + time + " per connection",
                    "",
                    {{"bytes", granted->bytes}, {"seconds", to_seconds(granted->duration)}}});
  }

  // ---- This machine

  /// Meets peers of other networks, as a walk through peer routing does.
  Task<void> look_around() {
    if (!met_outside()) co_return;
    (void)co_await host_.find_peer(KeyPair::generate_ed25519().peer_id(), runtime_.after(kLookAround));
    for (const auto& peer : host_.peers()) {
      if (met_.size() >= kMaxWitnesses) co_return;
      if (std::any_of(met_.begin(), met_.end(), [&](const Met& met) { return met.id == peer.id; })) continue;
      const auto remote = host_.remote_address(peer.id);
      if (!remote || !is_outside(*remote)) continue;
      auto said = co_await p2p::describe(host_, peer.id, soon());
      if (said) met_.push_back({peer.id, *remote, std::move(*said)});
    }
  }
  bool met_outside() const {
    return std::any_of(met_.begin(), met_.end(), [](const Met& met) { return is_outside(met.remote); });
  }
  static bool is_outside(const Multiaddr& remote) {
    return !remote.empty() && !remote.is_circuit() && remote.scope() == Multiaddr::Scope::public_;
  }

  /// The host has asked its router since it was started. To peers of its own network it makes no difference.
  Task<void> examine_port_map() {
    const Deadline patience = runtime_.after(kPortMapping);
    while (met_outside() && host_.port_mappings().empty() && !patience.passed(runtime_.now()))
      co_await runtime_.sleep_for(kLook);
    const auto mapped = host_.port_mappings();
    if (mapped.empty()) co_return report({}, skipped("port-map", "no router that forwards ports has answered"));
    Finding finding{"port-map", Status::ok, "the router forwards", "", {{"addresses", nlohmann::json::array()}}};
    for (const auto& one : mapped) {
      finding.text += " " + one.outside.text();
      finding.details["addresses"].push_back(one.outside.text());
    }
    report({}, std::move(finding));
  }

  /// The ports that we listen on, at the hosts at which peers outside see us.
  std::vector<Multiaddr> addresses_outside() const {
    std::vector<Multiaddr> result;
    for (const auto& address : host_.addresses())
      for (const auto& met : met_)
        if (met.said.observed && is_outside(met.remote) && address.first_code() == met.said.observed->first_code()) {
          auto one = address.with_host_of(*met.said.observed);
          if (std::find(result.begin(), result.end(), one) == result.end()) result.push_back(std::move(one));
        }
    return result;
  }

  Task<void> examine_dial_back() {
    const auto addresses = addresses_outside();
    if (addresses.empty()) {
      report({}, skipped("dial-back", "all peers met are of this machine's own network"));
      co_return;
    }
    std::string refusals;
    std::optional<Finding> failure;
    int asked = 0;
    for (const auto& met : met_) {
      if (asked == kDialBackWitnesses) break;
      if (!is_outside(met.remote) || !met.serves(p2p::kDialBackProtocol)) continue;
      const auto answer = co_await p2p::ask_dial_back(host_, met.id, addresses, runtime_.after(kDialBack));
      if (!answer || answer->outcome == p2p::DialBack::Outcome::refused) {
        refusals = answer ? log::quoted(answer->text, kMaxPeerText) : answer.error().message();
        continue;
      }
      ++asked;
      Finding finding = dialled_back(met, *answer, addresses.front());
      if (finding.status == Status::ok) co_return report({}, std::move(finding));
      if (!failure) failure = std::move(finding);
    }
    if (failure) co_return report({}, std::move(*failure));
    report({}, skipped("dial-back", refusals.empty() ? "no peer that was met dials back" : "not tried: " + refusals));
  }

  Finding dialled_back(const Met& met, const p2p::DialBack& answer, const Multiaddr& address) const {
    if (answer.outcome == p2p::DialBack::Outcome::reached) {
      const std::string at = answer.address ? answer.address->text() : address.text();
      return {"dial-back",
              Status::ok,
              "peers outside connect to this machine at " + at,
              "",
              {{"address", at}, {"peer_id", met.id.text()}}};
    }
    const bool picked = std::none_of(options_.listen.begin(), options_.listen.end(),
                                     [&](const Multiaddr& listen) { return port_of(listen) == port_of(address); });
    const std::string what =
        picked ? "port " + port_of(address) +
                     " was picked at random, so that no firewall lets it in: stop the node and try its own port with "
                     "--host-maddrs /ip4/0.0.0.0/tcp/PORT; open that one in the firewall and forward it in the router"
               : "open TCP port " + port_of(address) + " in the firewall and forward it in the router";
    Finding finding = failed("dial-back", "peers outside cannot connect to this machine at " + address.text(),
                             what + ", or be reached through a relay: docs/relay.md");
    finding.details["address"] = address.text();
    return finding;
  }

  /// A peer that has a relay, too, is dialled from any port (DialRace), which any router translates to another one.
  bool dialled_from_listening_port(const Multiaddr& remote) const {
    const std::string port = port_of(sources_.source_of(remote));
    return std::any_of(interfaces_.begin(), interfaces_.end(),
                       [&](const Multiaddr& one) { return port_of(one) == port; });
  }

  /// What peers outside see as the source of connections: of those that come from the listening port, host and port;
  /// of others the host alone.
  void examine_nat() {
    std::set<std::string> seen, hosts;
    std::size_t witnesses = 0, comparable = 0;
    bool translated = false;
    for (const auto& met : met_) {
      if (!is_outside(met.remote) || !met.said.observed || met.said.observed->first_code() != Multiaddr::ip4) continue;
      ++witnesses;
      hosts.insert(host_of(*met.said.observed));
      if (dialled_from_listening_port(met.remote)) {
        ++comparable;
        seen.insert(met.said.observed->without_peer().text());
      }
      translated |= std::none_of(interfaces_.begin(), interfaces_.end(),
                                 [&](const Multiaddr& one) { return host_of(one) == host_of(*met.said.observed); });
    }
    if (witnesses == 0) return report({}, skipped("nat", "no peer outside was met over IPv4"));
    const auto& places = seen.empty() ? hosts : seen;
    Finding finding{"nat", Status::ok, "", "", {{"seen_at", places}, {"witnesses", witnesses}}};
    if (!translated) {
      finding.text = "none: peers outside see an address of this machine";
      finding.details["kind"] = "none";
    } else if (seen.size() > 1 || hosts.size() > 1) {
      finding.text = "symmetric: each peer sees another address of this machine";
      finding.details["kind"] = "symmetric";
      finding.advice =
          "two peers behind such routers meet through a relay only: forward a port, or give them a relay that "
          "carries enough";
    } else if (comparable > 1) {
      finding.text = log::format("endpoint-independent: {} peers see this machine at {}; holes can be punched",
                                 comparable, *seen.begin());
      finding.details["kind"] = "endpoint-independent";
    } else {
      finding.text = "translated to " + *places.begin() +
                     "; it takes two peers that are dialled from one port to tell of which kind";
      finding.details["kind"] = "translated";
      finding.advice = "name peers of other networks, too, to learn the kind";
    }
    report({}, std::move(finding));
  }

  transport::Network& network_;
  Runtime& runtime_;
  const DoctorOptions options_;
  FindingReport report_;
  std::unique_ptr<transport::Resolver> resolver_;
  SourceNotes sources_;
  p2p::Host host_;
  std::vector<Multiaddr> interfaces_;  ///< of this machine, before addresses of a router or seen by peers are added
  Multiaddr local_;                    ///< our end of the last connection
  std::vector<Met> met_;
  bool healthy_ = true;
};

}  // namespace

Task<bool> diagnose(transport::Network& network, DoctorOptions options, FindingReport report) {
  Doctor doctor(network, std::move(options), std::move(report));
  co_return co_await doctor.run();
}

std::string_view to_text(Finding::Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::failed:
      return "failed";
    case Status::skipped:
      break;
  }
  return "skipped";
}

}  // namespace cohive::tools
