#include "cohive/train/swarm.hpp"

#include "cohive/core/combine.hpp"
#include "cohive/core/diagnostics.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/status.hpp"
#include "cohive/core/trace.hpp"
#include "cohive/core/try.hpp"
#include "cohive/dht/members.hpp"
#include "cohive/p2p/identity_check.hpp"
#include "cohive/p2p/initial_peers.hpp"
#include "core/detail/said_once.hpp"
#include "train/detail/membership.hpp"

namespace cohive {
namespace {

constexpr Duration kFirstPause = 1s, kLongestPause = 30s;  // between attempts to join
constexpr Duration kIdentityCheck = 5s;
constexpr Duration kLook = 100ms;  // between two questions whether to give up

std::vector<Multiaddr> parse_all(const std::vector<std::string>& texts) {
  std::vector<Multiaddr> result;
  for (const auto& text : texts) result.push_back(Multiaddr::from_text(text).value());
  return result;
}

Error given_up() {
  return Error(Errc::closed, "joining the swarm was given up");
}

Task<void> until_set(std::shared_ptr<Event> event) {
  co_await event->wait();
}

/// Drops the task when `give_up` is set.
Task<Result<>> unless(Runtime& runtime, std::shared_ptr<Event> give_up, Task<Result<>> task) {
  auto ended = co_await race(runtime, std::move(task), until_set(std::move(give_up)));
  co_return ended.index() == 0 ? std::get<0>(std::move(ended)) : Result<>(given_up());
}

}  // namespace

namespace train {

Membership::Membership(SwarmOptions opts) : options(std::move(opts)) {
  if (options.initial_peers.empty() && options.peers_from_environment)
    options.initial_peers = initial_peers_from_environment();
  // The key that signs our progress takes tenths of a second to make: not on the loop.
  key = options.key ? options.key : std::make_shared<dht::RsaSignatureValidator>();
  thread = std::make_unique<RuntimeThread>();
  if (auto opened = open(); !opened) {
    call([this] { return close(); });
    throw ErrorException(opened.error());
  }
}

p2p::HostOptions Membership::host_options() const {
  p2p::HostOptions result;
  result.listen = options.client_mode ? std::vector<Multiaddr>() : parse_all(options.host_maddrs);
  result.announce = parse_all(options.announce_maddrs);
  result.routing_server = !options.client_mode;
  result.nat_port_map = options.nat_port_map;
  result.congestion_control = options.congestion_control;
  result.max_bundled_connections = options.connections_per_peer;
  result.use_relay = options.use_relay && !options.client_mode;
  result.trusted_relays = parse_all(options.trusted_relays);
  if (options.relay_service && !options.client_mode) result.relay_service = p2p::RelayServiceOptions{};
  if (options.force_reachability.empty()) return result;
  result.force_reachability = p2p::reachability_from_text(options.force_reachability);
  if (!result.force_reachability || *result.force_reachability == p2p::Reachability::unknown)
    throw ErrorException(
        Error(cohive::Errc::invalid_argument,
              "force_reachability is \"public\" or \"private\", not \"" + options.force_reachability + "\""));
  return result;
}

Result<> Membership::open() {
  auto initial = parse_all(options.initial_peers);
  const p2p::HostOptions host_options = this->host_options();
  const bool own_file = !options.identity_path.empty();
  identity =
      own_file ? hold_identity(options.identity_path).value() : HeldIdentity{KeyPair::generate_ed25519(), nullptr};
  if (auto free = own_file ? check_identity(initial, host_options) : ok(); !free) return free;
  const auto own = p2p::take_own_addresses(initial, identity.key.peer_id());
  p2p::MetricsOptions metrics;
  if (!options.metrics_token_file.empty()) metrics.token = p2p::read_token(options.metrics_token_file).value();
  if (auto known = know_members(); !known) return known;
  Result<> started = ok();
  on_loop([&] {
    if (options.diagnostics_at_signal) runtime().background().spawn(write_diagnostics_at_signal(runtime()), "SIGUSR1");
    if (!options.trace_file.empty())
      started = Trace::of(runtime()).start(options.trace_file, identity.key.peer_id().text());
    if (!started) return;
    open_network();
    host = std::make_unique<p2p::Host>(*network, identity.key, host_options);
    if (!own.empty()) own_addresses = std::make_unique<p2p::OwnAddressCheck>(*network, *host);
    started = host->start();
    if (!started || options.metrics_address.empty()) return;
    metrics_network = transport::make_tcp_network(runtime());
    metrics_server =
        std::make_unique<p2p::MetricsServer>(*metrics_network, [this] { return ready; }, std::move(metrics));
    started = metrics_server->start(options.metrics_address);
  });
  if (!started) return started;
  if (auto ours = check_own_addresses(own); !ours) return ours;
  return join(initial);
}

/// Where the list of initial peers names this peer itself, a copy of its identity file may be in use. At an address at
/// which nobody answers it cannot be told: it may be that of our router.
Result<> Membership::check_own_addresses(const std::vector<Multiaddr>& own) {
  for (const auto& address : own) {
    const auto led = call_patiently([&]() -> Task<Result<>> {
      return [](p2p::OwnAddressCheck& check, Multiaddr at, Deadline deadline) -> Task<Result<>> {
        CO_TRY(co_await check.leads_here(std::move(at), deadline));
        co_return ok();
      }(*own_addresses, address, runtime().after(kIdentityCheck));
    });
    if (!led) return led;
  }
  return ok();
}

bool Membership::wanted() const {
  return !options.give_up || !options.give_up();
}

/// As call(), and asks meanwhile whether to give up: what other peers are to answer may take long.
Result<> Membership::call_patiently(std::function<Task<Result<>>()> make) {
  const auto give_up = std::make_shared<Event>(runtime(), "a user who gives up");
  auto ending = runtime().submit([&] { return unless(runtime(), give_up, make()); });
  while (ending.wait_for(kLook) != std::future_status::ready) {
    if (wanted()) continue;
    runtime().post([give_up] { give_up->set(); });
    break;
  }
  return ending.get();
}

/// Reads which peers are members, in a swarm that has them.
Result<> Membership::know_members() {
  const auto impossible = [](const char* what) { return Error(cohive::Errc::invalid_argument, what); };
  if (options.authorizer && !(options.secret_file.empty() && options.members_file.empty()))
    return impossible("give one of authorizer, secret_file and members_file");
  if (!options.members_file.empty() && options.identity_path.empty())
    return impossible("members_file needs identity_path: a peer that is listed keeps its identity");
  auto members = dht::make_authorizer(runtime(), {options.secret_file, options.members_file}, identity.key, key);
  if (!members) return members.error();
  authorizer = *members ? std::move(*members) : options.authorizer;
  return ok();
}

void Membership::open_network() {
  if (!network)
    network =
        transport::limit_bandwidth(transport::make_tcp_network(runtime()), {options.max_upload, options.max_download});
}

/// Two processes of one identity take each other's connections away.
Result<> Membership::check_identity(const std::vector<Multiaddr>& initial, const p2p::HostOptions& host_options) {
  on_loop([this] { open_network(); });
  return call_patiently([&] {
    return p2p::check_identity_is_free(*network, identity.key.peer_id(), initial, host_options.transport,
                                       runtime().after(kIdentityCheck));
  });
}

/// Tries until a swarm is there, the time is over or the caller gives up.
Result<> Membership::join(const std::vector<Multiaddr>& initial) {
  const auto begin = std::chrono::steady_clock::now();
  const auto left = [&]() -> Duration {
    if (options.wait_for_swarm == Duration::max()) return Duration::max();
    return options.wait_for_swarm - std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - begin);
  };
  Duration pause = kFirstPause;
  for (int attempt = 1;; ++attempt, pause = std::min(pause * 2, kLongestPause)) {
    const auto joined = call_patiently([&]() -> Task<Result<>> {
      DhtOptions dht_options = options.dht;
      dht_options.client_mode = options.client_mode;
      dht_options.authorizer = authorizer;
      dht_options.bootstrap_timeout = options.bootstrap_timeout;
      dht = std::make_unique<Dht>(*host, dht_options);
      if (options.check_owners) dht->add_validator(key);
      for (const auto& validator : options.validators) dht->add_validator(validator);
      return dht->start(initial);
    });
    if (joined) break;
    if (!wanted()) return given_up();
    if (!options.ensure_bootstrap_success && !names_wrong_peer(joined.error())) {
      log::warn("train", "no initial peer answers: alone for now, and trying again until one does: {}",
                said_once(joined.error().message()));
      break;
    }
    call([this] { return dht->close(); });
    if (left() <= 0s || names_wrong_peer(joined.error())) return joined;
    if (!wanted()) return given_up();
    log::warn("train", "no swarm yet (attempt {}): {}; trying again in {:.0f} s", attempt,
              said_once(joined.error().message()), to_seconds(pause));
    for (Duration waited{}; waited < std::min(pause, left()) && wanted(); waited += kLook)
      std::this_thread::sleep_for(kLook);
    if (!wanted()) return given_up();
  }
  on_loop([this] {
    ready = true;
    status = Status::of(runtime()).add("dht", [this] {
      return log::format("{{\"nodes\":{},\"records\":{}}}", dht->table_size(), dht->storage_size());
    });
  });
  return ok();
}

Task<void> Membership::close() {
  ready = false;
  metrics_server.reset();
  metrics_network.reset();
  status.reset();
  if (dht) co_await dht->close();
  dht.reset();
  own_addresses.reset();
  if (host) co_await host->close();
  host.reset();
  network.reset();
  Trace::of(runtime()).stop();
}

Membership::~Membership() {
  if (host) call([this] { return close(); });
}

}  // namespace train

Swarm::Swarm(SwarmOptions options) : membership_(std::make_unique<train::Membership>(std::move(options))) {}
Swarm::~Swarm() = default;

std::vector<std::string> Swarm::visible_addresses() const {
  std::vector<std::string> result;
  membership_->on_loop([&] {
    for (const auto& address : membership_->host->visible_addresses()) result.push_back(address.text());
  });
  return result;
}

std::string Swarm::join_line() const {
  std::string line;
  for (const auto& address : visible_addresses()) line += (line.empty() ? "INITIAL_PEERS=" : ",") + address;
  return line;
}

Runtime& Swarm::runtime() const noexcept {
  return membership_->runtime();
}
Dht& Swarm::dht() const noexcept {
  return *membership_->dht;
}

std::string Swarm::peer_id() const {
  return membership_->host->id().text();
}
const SwarmOptions& Swarm::options() const noexcept {
  return membership_->options;
}

std::string Swarm::metrics_url() const {
  std::string url;
  membership_->on_loop([&] {
    if (membership_->metrics_server) url = membership_->metrics_server->url();
  });
  return url;
}

std::string Swarm::page_url() const {
  std::string url;
  membership_->on_loop([&] {
    if (membership_->metrics_server) url = membership_->metrics_server->page_url();
  });
  return url;
}

}  // namespace cohive
