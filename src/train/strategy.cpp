#include "cohive/train/strategy.hpp"

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "session.hpp"

namespace cohive {
namespace {

std::vector<Multiaddr> parse_all(const std::vector<std::string>& texts) {
  std::vector<Multiaddr> result;
  for (const auto& text : texts) result.push_back(Multiaddr::from_text(text).value());
  return result;
}

}  // namespace

namespace train {

Session::Session(StrategyOptions opts) : options(std::move(opts)) {
  if (options.run_id.empty() || options.run_id.find('.') != std::string::npos)
    throw ErrorException(Error(Errc::invalid_argument, "run_id must not be empty nor contain \".\""));
  if (options.initial_peers.empty()) options.initial_peers = initial_peers_from_environment();
  auto initial = parse_all(options.initial_peers);
  // The key that signs our progress takes tenths of a second to make: not on the loop.
  key = std::make_shared<dht::RsaSignatureValidator>();
  p2p::HostOptions host_options;
  host_options.listen = options.client_mode ? std::vector<Multiaddr>() : parse_all(options.host_maddrs);
  host_options.announce = parse_all(options.announce_maddrs);
  host_options.routing_server = !options.client_mode;
  const KeyPair identity = options.identity_path.empty() ? KeyPair::generate_ed25519()
                                                         : load_or_create_identity(options.identity_path).value();
  thread = std::make_unique<RuntimeThread>();
  on_loop([&] {
    network = transport::limit_bandwidth(transport::make_tcp_network(thread->runtime()), options.limits);
    host = std::make_unique<p2p::Host>(*network, identity, host_options);
  });
  auto opened = call([this, &initial] { return open(std::move(initial)); });
  if (!opened) {
    call([this] { return close(); });
    throw ErrorException(opened.error());
  }
}

Task<Result<>> Session::open(std::vector<Multiaddr> initial) {
  if (auto started = host->start(); !started) co_return started.error();
  if (!options.metrics_address.empty()) {
    metrics_server = std::make_unique<p2p::MetricsServer>(*network, [this] { return ready; });
    if (auto serving = metrics_server->start(options.metrics_address); !serving) co_return serving.error();
  }
  DhtOptions dht_options;
  dht_options.client_mode = options.client_mode;
  dht = std::make_unique<Dht>(*host, dht_options);
  dht->add_validator(key);
  if (auto joined = co_await dht->start(std::move(initial)); !joined) co_return joined.error();
  ready = true;
  co_return ok();
}

Task<void> Session::close() {
  ready = false;
  metrics_server.reset();
  if (dht) co_await dht->close();
  dht.reset();
  co_await host->close();
  host.reset();
  network.reset();
}

Session::~Session() {
  if (host) call([this] { return close(); });
}

}  // namespace train

Strategy::Strategy(StrategyOptions options) : session_(std::make_unique<train::Session>(std::move(options))) {}
Strategy::~Strategy() = default;

std::vector<std::string> Strategy::visible_addresses() const {
  std::vector<std::string> result;
  session_->on_loop([&] {
    for (const auto& address : session_->host->visible_addresses()) result.push_back(address.text());
  });
  return result;
}

std::string Strategy::join_line() const {
  std::string line;
  for (const auto& address : visible_addresses()) line += (line.empty() ? "INITIAL_PEERS=" : ",") + address;
  return line;
}

std::string Strategy::peer_id() const {
  return session_->host->id().text();
}
const StrategyOptions& Strategy::options() const noexcept {
  return session_->options;
}

std::string Strategy::metrics_url() const {
  std::string url;
  session_->on_loop([&] {
    if (session_->metrics_server) url = session_->metrics_server->url();
  });
  return url;
}

}  // namespace cohive
