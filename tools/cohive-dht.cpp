// cohive-dht: reads, writes and looks into a DHT from the command line, as a client that no other peer sees; and finds
// out why one cannot be joined.
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/dht/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "common/client.hpp"
#include "common/numbers.hpp"
#include "common/program.hpp"
#include "common/settings.hpp"
#include "dht/crawl.hpp"
#include "dht/milliseconds.hpp"
#include "dht/values.hpp"
#include "monitor/doctor_command.hpp"

namespace cohive::tools {
namespace {

using nlohmann::json;

struct Options {
  std::string command;
  std::vector<std::string> initial_peers;
  bool json = false;
  ClientMember member;
  DoctorCommand doctor;
  std::string key, subkey, value, target;
  bool with_subkey = false, cached = false;
  double ttl = 300;
  std::size_t parallel = CrawlOptions().parallel;
  log::Options log{log::Level::warn, log::Format::text};
};

json texts(const std::vector<Multiaddr>& addresses) {
  json list = json::array();
  for (const auto& address : addresses) list.push_back(address.text());
  return list;
}

std::string joined(const std::vector<Multiaddr>& addresses) {
  std::string text;
  for (const auto& address : addresses) text += (text.empty() ? "" : " ") + address.text();
  return text.empty() ? "no address known" : text;
}

/// Text that a peer says of itself.
std::string agent_text(const std::string& agent) {
  return agent.empty() ? "unknown software" : log::quoted(agent, 60);
}

void print(const json& line) {
  std::cout << line_of(line) << std::endl;
}

// ---- Commands. Each prints its result and returns the exit code.

Task<int> get(Dht& dht, const Options& options) {
  const auto found = co_await dht.get(value_from_text(options.key), !options.cached);
  if (!found && found.error() == dht::Errc::not_found)
    throw Exit{kFailed, "no record of " + line_of(json_from_value(value_from_text(options.key)))};
  if (!found) throw Exit{kFailed, found.error().message()};
  const auto lifetime = [&](double expiration) { return log::format("expires in {:.1f} s", expiration - dht.now()); };
  if (options.json) {
    json line{{"expiration", found->expiration}};
    if (const auto* value = found->value()) line["value"] = json_from_value(*value);
    if (found->is_dictionary()) line["entries"] = json::array();
    for (const auto& [subkey, stored] : found->entries())
      line["entries"].push_back({{"subkey", json_from_value(subkey)},
                                 {"value", json_from_value(stored.value)},
                                 {"expiration", stored.expiration}});
    print(line);
    co_return 0;
  }
  if (const auto* value = found->value())
    std::cout << line_of(json_from_value(*value)) << "  (" << lifetime(found->expiration) << ")" << std::endl;
  for (const auto& [subkey, stored] : found->entries())
    std::cout << line_of(json_from_value(subkey)) << ": " << line_of(json_from_value(stored.value)) << "  ("
              << lifetime(stored.expiration) << ")" << std::endl;
  co_return 0;
}

Task<int> store(Dht& dht, const Options& options) {
  const double expiration = dht.now() + options.ttl;
  auto key = value_from_text(options.key), value = value_from_text(options.value);
  const auto stored = options.with_subkey ? co_await dht.store(std::move(key), value_from_text(options.subkey),
                                                               std::move(value), expiration)
                                          : co_await dht.store(std::move(key), std::move(value), expiration);
  if (!stored) throw Exit{kFailed, "not stored: " + stored.error().message()};
  if (options.json) {
    print({{"stored", true}, {"expiration", expiration}});
  } else {
    std::cout << log::format("stored for {:.0f} s", options.ttl) << std::endl;
  }
  co_return 0;
}

[[noreturn]] void fail_to_reach(const std::string& target, const Error& error) {
  if (error == transport::Errc::peer_mismatch) throw ErrorException(error);  // the user's mistake
  throw Exit{kFailed, "cannot reach " + target + ": " + error.code().message()};
}

/// By id, or by full address.
Task<PeerId> connect_to_target(Dht& dht, const std::string& target) {
  const Deadline deadline = dht.runtime().after(std::chrono::seconds(15));
  if (const auto peer = PeerId::from_text(target)) {
    const auto connected = co_await dht.host().connect(*peer, deadline);
    if (!connected) fail_to_reach(target, connected.error());
    co_return *peer;
  }
  const auto connected = co_await dht.host().connect(parse_addresses({target}, "ping").front(), deadline);
  if (!connected) fail_to_reach(target, connected.error());
  co_return *connected;
}

Task<int> ping(Dht& dht, const Options& options) {
  const PeerId peer = co_await connect_to_target(dht, options.target);
  const auto trip = co_await p2p::ping(dht.host(), peer, dht.runtime().after(std::chrono::seconds(10)));
  if (!trip) fail_to_reach(options.target, trip.error());
  const auto node = co_await dht.ping(peer);
  const auto info = dht.host().peer(peer);
  const std::string agent = info ? info->agent : std::string();
  const bool serves = node && *node;
  if (options.json) {
    print({{"peer_id", peer.text()},
           {"node_id", serves ? json((*node)->hex()) : json()},
           {"latency_ms", milliseconds(*trip)},
           {"agent", agent}});
  } else {
    std::cout << log::format("{} answered in {:.2f} ms: {}, {}", peer.text(), milliseconds(*trip), agent_text(agent),
                             serves ? "DHT node " + (*node)->hex() : "serves no DHT")
              << std::endl;
  }
  co_return serves ? 0 : kFailed;
}

Task<int> peers(Dht& dht, const Options& options) {
  for (const auto& [id, peer] : dht.known_nodes()) {
    const auto info = dht.host().peer(peer);
    const auto addresses = info ? info->addresses : std::vector<Multiaddr>();
    const std::string agent = info ? info->agent : std::string();
    if (options.json) {
      print({{"peer_id", peer.text()}, {"node_id", id.hex()}, {"agent", agent}, {"addresses", texts(addresses)}});
    } else {
      std::cout << peer.text() << "  " << agent_text(agent) << "  " << joined(addresses) << std::endl;
    }
  }
  co_return 0;
}

Task<int> find(Dht& dht, const Options& options) {
  const auto key = dht::DhtId::of(value_from_text(options.key));
  const auto nodes = co_await dht.nearest_nodes(key);
  if (!options.json) std::cout << "id of the key: " << key.hex() << std::endl;
  for (const auto& [id, peer] : nodes) {
    const auto asked = co_await dht.ask(peer, {key});
    const bool holds = asked && asked->front().has_record;
    if (options.json) {
      print({{"peer_id", peer.text()}, {"node_id", id.hex()}, {"answers", asked.has_value()}, {"has_record", holds}});
    } else {
      std::cout << id.hex() << "  " << peer.text() << "  "
                << (holds   ? "has a record"
                    : asked ? "has none"
                            : "does not answer")
                << std::endl;
    }
  }
  co_return 0;
}

Task<int> map_swarm(Dht& dht, const Options& options) {
  const TimePoint start = dht.runtime().now();
  const auto nodes = co_await crawl(dht, {.parallel = options.parallel});
  std::map<std::string, std::size_t> agents;
  std::size_t reachable = 0;
  json list = json::array();
  for (const auto& node : nodes) {
    reachable += node.reachable;
    if (node.reachable) ++agents[node.agent];
    if (options.json) {
      list.push_back({{"peer_id", node.peer.text()},
                      {"node_id", node.id.hex()},
                      {"reachable", node.reachable},
                      {"latency_ms", milliseconds(node.latency)},
                      {"neighbours", node.neighbours},
                      {"agent", node.agent},
                      {"addresses", texts(node.addresses)}});
    } else {
      std::cout << node.peer.text() << "  "
                << (node.reachable ? log::format("{:>8.2f} ms  {:>4} neighbours  {}  {}", milliseconds(node.latency),
                                                 node.neighbours, agent_text(node.agent), joined(node.addresses))
                                   : std::string("does not answer"))
                << std::endl;
    }
  }
  const double seconds = to_seconds(dht.runtime().now() - start);
  if (options.json) {
    json software = json::object();
    for (const auto& [agent, count] : agents) software[agent] = count;
    print({{"nodes", nodes.size()},
           {"reachable", reachable},
           {"agents", software},
           {"seconds", seconds},
           {"peers", list}});
    co_return 0;
  }
  std::cout << log::format("{} nodes, {} of them answer; {:.1f} s", nodes.size(), reachable, seconds) << std::endl;
  for (const auto& [agent, count] : agents) std::cout << "  " << count << " x " << agent_text(agent) << std::endl;
  co_return 0;
}

// ---- The program

Task<int> run_command(Dht& dht, const Options& options) {
  if (options.command == "get") co_return co_await get(dht, options);
  if (options.command == "store") co_return co_await store(dht, options);
  if (options.command == "ping") co_return co_await ping(dht, options);
  if (options.command == "peers") co_return co_await peers(dht, options);
  if (options.command == "find") co_return co_await find(dht, options);
  co_return co_await map_swarm(dht, options);
}

int run(const Options& options) {
  log::configure(options.log);
  if (options.command == "doctor") {
    DoctorCommand doctor = options.doctor;
    doctor.initial_peers = options.initial_peers;
    doctor.member = options.member;
    doctor.json = options.json;
    return run_doctor(doctor);
  }
  const bool by_address = options.command == "ping" && !PeerId::from_text(options.target);
  std::vector<Multiaddr> initial;
  if (!by_address) {
    initial = swarm_addresses(options.initial_peers);
  } else {
    parse_initial_peers(initial_peers(options.initial_peers));
    if (!parse_addresses({options.target}, "ping").front().peer())
      throw Exit{kBadInput, "ping takes a peer id, or an address that ends with /p2p/<peer id>"};
  }
  auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
  const auto ended = runtime->run(run_as_client(*runtime, std::move(initial), options.member, options.command == "get",
                                                [&options](Dht& dht) { return run_command(dht, options); }));
  return ended.value_or(kFailed);
}

}  // namespace
}  // namespace cohive::tools

int main(int argc, char** argv) {
  using namespace cohive::tools;
  Options options;
  CLI::App app(
      "Looks into a DHT. Keys and values are JSON, or else text: 5 is a number, \"5\" a text, {\"hex\": \"00ff\"} "
      "bytes.",
      "cohive-dht");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--initial-peers", options.initial_peers, "multiaddrs of the swarm (or $INITIAL_PEERS)");
  app.add_flag("--json", options.json, "JSON, one object per line");
  add_client_member_options(app, options.member);
  add_log_options(app, options.log);
  const auto command = [&](const char* name, const char* about) {
    auto* sub = app.add_subcommand(name, about);
    sub->callback([&options, name] { options.command = name; });
    return sub;
  };
  auto* get = command("get", "the newest record of a key");
  get->add_option("KEY", options.key)->required();
  get->add_flag("--any", options.cached, "the first record found, which may be an older one");
  auto* store = command("store", "writes a record");
  store->add_option("KEY", options.key)->required();
  store->add_option("VALUE", options.value)->required();
  store->add_option("--subkey", options.subkey, "makes it an entry of a dictionary")
      ->type_name("JSON")
      ->each([&](const std::string&) { options.with_subkey = true; });
  in_seconds(store->add_option("--ttl", options.ttl, "seconds until it expires (default 300)"), 1, 604800);
  command("ping", "round trip to a peer")
      ->add_option("PEER", options.target, "peer id, or an address that ends with /p2p/<peer id>")
      ->required();
  command("peers", "the nodes that this program hears of by joining");
  command("find", "the nodes nearest to a key, and which of them hold a record of it")
      ->add_option("KEY", options.key)
      ->required();
  auto* doctor = command("doctor", "finds out step by step why a swarm cannot be joined, and what to do about it");
  add_doctor_options(*doctor, options.doctor);
  names_run(doctor->add_option("--run-id", options.doctor.run_id,
                               "look at this run, too: its trainers, clocks, parts and versions"));
  command("crawl", "a map of the swarm: every node, its software and latency")
      ->add_option("--parallel", options.parallel, "nodes asked at once (default 64)")
      ->transform(whole(1, 1000));
  app.footer(
      "Examples:\n"
      "  cohive-dht doctor /ip4/203.0.113.7/tcp/31337\n"
      "  cohive-dht store greeting '\"hello\"' --ttl 10m --initial-peers /ip4/203.0.113.7/tcp/31337/p2p/Qm...\n"
      "  cohive-dht get greeting --json --initial-peers /ip4/203.0.113.7/tcp/31337/p2p/Qm...\n"
      "  cohive-dht crawl\n");
  return run_program(argc, argv, app, [&] { return run(options); });
}
