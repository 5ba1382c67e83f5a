#include "scenarios/adversary.hpp"

#include <algorithm>
#include <deque>
#include <ostream>
#include <random>

#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/group_finder.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/try.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/proto/averaging.pb.h"
#include "cohive/proto/dht.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "scenarios/hostile_peer.hpp"
#include "scenarios/progress_record.hpp"

namespace cohive::sim {
namespace {

using msgpack::Bin;
using msgpack::Map;
using msgpack::Value;

constexpr std::uint64_t kFarEpoch = std::uint64_t{1} << 40;
constexpr double kWeek = 6 * 86400;
const std::string kGradients = "simulated_grad_averager", kStates = "simulated_state_averager";
constexpr Duration kPatience = 5s;
constexpr std::size_t kRolesAtOnce = 3;      // beside seven trainers 30 % of the peers
constexpr std::size_t kBudget = 32 << 20;    // of each host
constexpr std::size_t kMostEntries = 2'000;  // of a dictionary: a fifth of the usual, which a flooder fills as well
// What honest trainers keep: of their speed, and of their way, as TrainScenarioReport::astray counts.
constexpr double kLeastSpeed = 0.8, kFarthestAstray = 0.1;

// ---- Roles

Task<void> lie_about_progress(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key) {
  dht.add_validator(key);
  for (int i = 0;; ++i) {
    const std::uint64_t epochs[] = {kFarEpoch, ~std::uint64_t{0}, 0};
    const Map report = progress_record(dht.host().id().bytes(), epochs[i % 3], std::uint64_t{1} << 50, 1e14, dht.now());
    (void)co_await dht.store("simulated_progress", Bin{key->ownership_marker()}, report, dht.now() + kWeek + i);
    co_await dht.runtime().sleep_for(10s);
  }
}

/// The largest epoch that two trainers report.
Task<std::uint64_t> epoch_of_the_run(Dht& dht) {
  const auto found = co_await dht.get("simulated_progress", true);
  std::vector<std::uint64_t> epochs{0, 0};
  if (found)
    for (const auto& [subkey, stored] : found->entries())
      if (const auto* map = stored.value.get_if<Map>())
        if (const auto* epoch = map->find("epoch")) epochs.push_back(epoch->as_uint().value_or(0));
  std::ranges::sort(epochs, std::greater());
  co_return epochs[1];
}

/// Follows the run, `ahead` of it, with a plausible report.
Task<void> claim_batches(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, std::uint64_t ahead) {
  dht.add_validator(key);
  for (;;) {
    const std::uint64_t epoch = co_await epoch_of_the_run(dht) + ahead;
    const Map report = progress_record(dht.host().id().bytes(), epoch, 100'000, 1000.0, dht.now());
    (void)co_await dht.store("simulated_progress", Bin{key->ownership_marker()}, report, dht.now() + 60);
    co_await dht.runtime().sleep_for(1s);
  }
}

constexpr std::size_t kFirstOfManyKeys = 200, kManyKeys = 200;  // of peers that have any number of them

Task<void> report_under_new_key(Dht& dht, std::uint64_t number, PeerId peer, std::uint64_t epoch) {
  const auto key = std::make_shared<dht::RsaSignatureValidator>(cheap_key(kFirstOfManyKeys + number % kManyKeys));
  auto report = progress_record(peer.bytes(), epoch, std::uint64_t{1}, 1.0, dht.now());
  co_await store_under_key(dht, key, "simulated_progress", std::move(report), dht.now() + 60);
}

Task<void> claim_in_pairs(Dht& dht, std::uint64_t number) {
  for (std::uint64_t key = number * 1000;; key += 2) {
    for (std::uint64_t i = 0; i < 2; ++i)
      co_await report_under_new_key(dht, key + i, invented_peer(key + i), kFarEpoch + key);
    co_await dht.runtime().sleep_for(1500ms);
  }
}

Task<void> report_as_ghosts(Dht& dht, std::uint64_t number) {
  for (std::uint64_t key = number * 1000;; ++key) {
    const std::uint64_t epoch = co_await epoch_of_the_run(dht);
    const auto nodes = dht.known_nodes();
    const auto victim = nodes.empty() ? dht.host().id() : nodes[key % nodes.size()].second;
    co_await report_under_new_key(dht, 3 * key, victim, epoch);
    co_await report_under_new_key(dht, 3 * key + 1, invented_peer(key), epoch);
    const auto nobody =
        std::make_shared<dht::RsaSignatureValidator>(cheap_key(kFirstOfManyKeys + (3 * key + 2) % kManyKeys));
    auto report = progress_record(as_bytes("nobody"), epoch, std::uint64_t{1}, 1.0, dht.now());
    co_await store_under_key(dht, nobody, "simulated_progress", std::move(report), dht.now() + 60);
    co_await dht.runtime().sleep_for(1s);
  }
}

/// Announces a group of two in which it has the fast link, or one with members that do not exist.
Task<Result<>> forge(Dht& dht, rpc::ServerStream& stream, std::size_t invented) {
  Runtime& runtime = dht.runtime();
  CO_TRY(auto bytes, co_await stream.receive(runtime.after(kPatience)));
  proto::JoinRequest request;
  if (!bytes || !request.ParseFromString(to_string(bytes->view()))) co_return Error(cohive::Errc::malformed);
  proto::MessageFromLeader accepted;
  accepted.set_code(proto::ACCEPTED);
  CO_TRY(co_await stream.send(as_bytes(accepted.SerializeAsString()), runtime.after(kPatience)));
  proto::MessageFromLeader begin;
  begin.set_code(proto::BEGIN_ALLREDUCE);
  const auto add = [&begin](const PeerId& peer, std::string gathered) {
    begin.add_ordered_peer_ids(peer.binary());
    begin.add_gathered(std::move(gathered));
  };
  Bytes id(20), key(36);
  runtime.random_bytes(id);
  begin.set_group_id(to_string(id));
  const bool claims = invented == 0;
  const auto fast = claims ? std::optional(1e18) : std::nullopt;
  add(dht.host().id(), averaging::encode_gathered({.peer = {}, .bandwidth = fast}));
  add(stream.peer(), claims ? averaging::encode_gathered({.peer = {}, .bandwidth = 0.0}) : request.gather());
  for (std::size_t i = 0; i < invented; ++i) {
    runtime.random_bytes(key);
    add(PeerId::of_public_key(key), request.gather());
  }
  co_return co_await stream.send(as_bytes(begin.SerializeAsString()), runtime.after(kPatience));
}

std::vector<dht::StoreItem> declarations_of(const PeerId& leader, double expiration) {
  std::vector<dht::StoreItem> items;
  for (const std::string& prefix : {kGradients, kStates})
    items.push_back({prefix + ".0b", Value::bin(leader.bytes()), true, expiration});
  return items;
}

Task<void> lead_and_forge(Dht& dht, std::size_t invented) {
  rpc::Server server(dht.host());
  const auto handler = [&dht, invented](rpc::ServerStream& stream) { return forge(dht, stream, invented); };
  server.add_streaming(kGradients + "::GradientAverager.rpc_join_group", handler);
  server.add_streaming(kStates + "::TrainingStateAverager.rpc_join_group", handler);
  for (;;) {
    (void)co_await dht.store_many(declarations_of(dht.host().id(), dht.now() + 2), dht.runtime().after(kPatience));
    co_await dht.runtime().sleep_for(1s);
  }
}

averaging::AveragerOptions options_of_liars() {
  averaging::AveragerOptions options;
  options.prefix = kGradients;
  options.class_name = "GradientAverager";
  options.part_size_bytes = 4096;
  return options;
}

/// Identities cost nothing.
Task<void> change_and_stall(TrainSwarm& swarm, std::vector<std::uint32_t> sizes, std::uint64_t seed) {
  std::deque<averaging::HostilePeer> peers;
  for (;;) {
    Dht& dht = *co_await swarm.stranger();
    peers.emplace_back(dht, options_of_liars(), sizes, seed, averaging::HostilePeer::Malice::silence);
    co_await peers.back().misbehave();
  }
}

Task<void> join_and_lie(Dht& dht, std::vector<std::uint32_t> sizes, std::uint64_t seed) {
  averaging::HostilePeer hostile(dht, options_of_liars(), std::move(sizes), seed);
  for (;;) {
    co_await hostile.misbehave();
    co_await dht.runtime().sleep_for(1s);
  }
}

constexpr double kCheckedShare = 0.3;

/// Averages in which it does not clip what it sends itself would be huge.
Task<void> reduce_wrongly(Dht& dht, std::vector<std::uint32_t> sizes) {
  std::vector<std::vector<float>> values;
  std::vector<averaging::AveragedTensor> tensors;
  for (const std::uint32_t size : sizes) values.emplace_back(size);
  for (std::size_t i = 0; i < sizes.size(); ++i) tensors.push_back({values[i], {sizes[i]}});
  averaging::AveragerOptions options;
  options.prefix = kGradients;
  options.class_name = "GradientAverager";
  options.verified_share = kCheckedShare;
  options.aggregation = averaging::ClippedMean();
  std::string honest_schema;
  options.group_finder = [&honest_schema](averaging::FinderContext context) {
    honest_schema = context.schema_hash;
    return averaging::make_matchmaking(std::move(context));
  };
  const averaging::Averager honest(dht, tensors, options);
  options.aggregation = averaging::Mean();
  options.group_finder = [&honest_schema](averaging::FinderContext context) {
    context.schema_hash = honest_schema;
    return averaging::make_matchmaking(std::move(context));
  };
  averaging::Averager averager(dht, std::move(tensors), options);
  averager.start();
  for (;;) {
    for (auto& tensor : values) std::ranges::fill(tensor, 1e6f);
    (void)co_await averager.step({.timeout = 20s});
    co_await dht.runtime().sleep_for(1s);
  }
}

Task<void> share_a_bad_state(Dht& dht, std::uint32_t features) {
  averaging::StateSharingOptions options;
  options.prefix = kStates;
  options.class_name = "TrainingStateAverager";
  averaging::StateSharing sharing(dht, options);
  averaging::SharedState state{Map{{{"epoch", kFarEpoch}}}, {}};
  state.tensors.push_back({codec::DType::float32, {features}, false, Slice::copy_of(Bytes(4 * features, 0x41))});
  sharing.set_provider([state]() -> std::optional<averaging::SharedState> { return state; });
  sharing.set_priority(1e308);
  sharing.start();
  co_await dht.runtime().sleep_for(24h);
}

/// Turns what an honest donor shares around: the same epoch, names and shapes, and a model that has learnt the
/// opposite.
Task<void> share_the_opposite(Dht& dht) {
  averaging::StateSharingOptions options;
  options.prefix = kStates;
  options.class_name = "TrainingStateAverager";
  averaging::StateSharing sharing(dht, options);
  sharing.start();
  for (;;) {
    auto state = co_await sharing.download({.limit = 20s});
    if (state) {
      const auto* metadata = state->metadata.get_if<Map>();
      const auto* epoch = metadata ? metadata->find("epoch") : nullptr;
      averaging::SharedState opposite{state->metadata, std::move(state->tensors)};
      for (codec::Tensor& tensor : opposite.tensors) {
        if (tensor.dtype != codec::DType::float32) continue;
        auto* values = reinterpret_cast<float*>(tensor.data.mutable_data());
        for (std::size_t i = 0; i < tensor.data.size() / sizeof(float); ++i) values[i] *= -3;
      }
      sharing.set_provider([opposite]() -> std::optional<averaging::SharedState> { return opposite; });
      sharing.set_priority(epoch ? epoch->as_number().value_or(0) + 2 : 0);
    }
    co_await dht.runtime().sleep_for(5s);
  }
}

std::vector<dht::StoreItem> flood_of(int number, double expiration) {
  std::vector<dht::StoreItem> items;
  for (const std::string& key : {std::string("simulated_progress"), kStates + ".all_averagers", kGradients + ".0b"})
    for (int k = 0; k < 500; ++k)
      items.push_back({key, Value(std::to_string(500 * number + k)), std::string(100, 'x'), expiration});
  return items;
}

Task<void> flood(Dht& dht) {
  for (int i = 0;; ++i) {
    (void)co_await dht.store_many(flood_of(i, dht.now() + kWeek), dht.runtime().after(10s));
    co_await dht.runtime().sleep_for(5s);
  }
}

Task<void> hold_a_slot(Dht& dht, PeerId peer, bool ask) {
  Runtime& runtime = dht.runtime();
  auto call = co_await rpc::open_call(dht.host(), peer, kStates + "::TrainingStateAverager.rpc_download_state",
                                      runtime.after(kPatience));
  if (!call) co_return;
  if (ask) {
    (void)co_await (*call)->send(ByteView(), runtime.after(kPatience));
    (void)co_await (*call)->finish(runtime.after(kPatience));
  }
  co_await runtime.sleep_for(20s);
}

Task<void> hold_slots(Dht& dht, bool ask) {
  for (;;) {
    Nursery calls(dht.runtime(), "slots");
    for (const auto& [id, peer] : dht.known_nodes())
      for (int i = 0; i < 4; ++i) calls.spawn(hold_a_slot(dht, peer, ask));
    co_await calls.join();
    co_await dht.runtime().sleep_for(100ms);
  }
}

/// Nodes beside the keys of a run, nearer than those of any trainer.
class Sybils {
 public:
  explicit Sybils(TrainSwarm& swarm) {
    for (const std::string& key : {std::string("simulated_progress"), kGradients + ".0b"})
      for (std::uint8_t i = 1; i <= kOfAKey; ++i) {
        auto [host, trainer] = swarm.bare_stranger();
        std::string id = dht::DhtId::of(key).binary();
        id.back() = static_cast<char>(id.back() ^ i);
        nodes_.push_back({std::move(id), std::move(trainer), std::make_unique<rpc::Server>(*host)});
      }
    for (Node& node : nodes_) serve(node);
  }
  /// Becomes known to the trainers, again and again.
  Task<void> greet() {
    for (;;) {
      for (const Node& node : nodes_) {
        p2p::Host& host = node.server->host();
        Runtime& runtime = host.runtime();
        (void)co_await host.connect(node.trainer, runtime.after(kPatience));
        proto::FindRequest hello;
        hello.mutable_peer()->set_node_id(node.id);
        hello.add_keys(node.id);
        std::vector<PeerId> trainers;
        if (const auto first = node.trainer.peer()) trainers.push_back(*first);
        for (std::size_t i = 0; i < trainers.size(); ++i) {
          const auto reply = co_await rpc::call_unary(host, trainers[i], "DHTProtocol.rpc_find",
                                                      hello.SerializeAsString(), runtime.after(kPatience));
          proto::FindResponse found;
          if (!reply || !found.ParseFromString(*reply) || found.results_size() == 0) continue;
          for (const std::string& bytes : found.results(0).nearest_peer_ids())
            if (const auto peer = PeerId::from_bytes(as_bytes(bytes));
                peer && !is_ours(*peer) && std::ranges::find(trainers, *peer) == trainers.end()) {
              (void)co_await host.connect_via(*peer, trainers[i], runtime.after(kPatience));
              trainers.push_back(*peer);
            }
        }
      }
      co_await nodes_.front().server->host().runtime().sleep_for(10s);
    }
  }

 private:
  static constexpr std::uint8_t kOfAKey = 4;
  struct Node {
    std::string id;
    Multiaddr trainer;
    std::unique_ptr<rpc::Server> server;
  };
  bool is_ours(const PeerId& peer) const {
    return std::ranges::any_of(nodes_, [&](const Node& node) { return node.server->host().id() == peer; });
  }
  void serve(Node& node) {
    node.server->add_unary("DHTProtocol.rpc_ping", [&node](PeerId, std::string) { return answer_ping(node); });
    node.server->add_unary("DHTProtocol.rpc_store",
                           [&node](PeerId, std::string request) { return swallow(node, std::move(request)); });
    node.server->add_unary("DHTProtocol.rpc_find", [this, &node](PeerId, std::string request) {
      return find(*this, node, std::move(request));
    });
  }
  static Task<Result<std::string>> answer_ping(const Node& node) {
    proto::PingResponse reply;
    reply.mutable_peer()->set_node_id(node.id);
    reply.set_dht_time(node.server->host().runtime().wall_time());
    reply.set_available(true);
    co_return reply.SerializeAsString();
  }
  static Task<Result<std::string>> swallow(const Node& node, std::string bytes) {
    proto::StoreRequest request;
    request.ParseFromString(bytes);
    proto::StoreResponse reply;
    reply.mutable_peer()->set_node_id(node.id);
    for (int i = 0; i < request.keys_size(); ++i) reply.add_store_ok(true);
    co_return reply.SerializeAsString();
  }
  static Task<Result<std::string>> find(const Sybils& self, const Node& node, std::string bytes) {
    proto::FindRequest request;
    request.ParseFromString(bytes);
    proto::FindResponse reply;
    reply.mutable_peer()->set_node_id(node.id);
    for (int i = 0; i < request.keys_size(); ++i) {
      auto* result = reply.add_results();
      for (const Node& other : self.nodes_) {
        result->add_nearest_node_ids(other.id);
        result->add_nearest_peer_ids(other.server->host().id().binary());
      }
    }
    co_return reply.SerializeAsString();
  }
  std::deque<Node> nodes_;
};

Task<void> crowd_keys(TrainSwarm& swarm) {
  Sybils sybils(swarm);
  co_await sybils.greet();
}

constexpr std::size_t kFirstKey = 60;  // of hostile peers; trainers have those before

Task<void> play(TrainSwarm& swarm, AdversaryRole role, const TrainScenario& scenario, std::uint64_t number) {
  const auto sizes = [&scenario] {
    return std::vector{static_cast<std::uint32_t>(scenario.features), static_cast<std::uint32_t>(scenario.ballast)};
  };
  if (role == AdversaryRole::sybils) co_return co_await crowd_keys(swarm);
  if (role == AdversaryRole::changeling) co_return co_await change_and_stall(swarm, sizes(), number);
  Dht& dht = *co_await swarm.stranger();
  const auto key = [number] {
    return std::make_shared<dht::RsaSignatureValidator>(cheap_key(kFirstKey + number % kRolesAtOnce));
  };
  switch (role) {
    case AdversaryRole::progress_liar:
      co_return co_await lie_about_progress(dht, key());
    case AdversaryRole::batch_claimer:
      co_return co_await claim_batches(dht, key(), 0);
    case AdversaryRole::epoch_pusher:
      co_return co_await claim_batches(dht, key(), 1);
    case AdversaryRole::forging_leader:
      co_return co_await lead_and_forge(dht, 0);
    case AdversaryRole::lying_owner:
      co_return co_await join_and_lie(dht, sizes(), number);
    case AdversaryRole::bad_donor:
      co_return co_await share_a_bad_state(dht, static_cast<std::uint32_t>(scenario.features));
    case AdversaryRole::plausible_donor:
      co_return co_await share_the_opposite(dht);
    case AdversaryRole::flooder:
      co_return co_await flood(dht);
    case AdversaryRole::slot_holder:
      co_return co_await hold_slots(dht, false);
    case AdversaryRole::slow_reader:
      co_return co_await hold_slots(dht, true);
    case AdversaryRole::inventing_leader:
      co_return co_await lead_and_forge(dht, 20);
    case AdversaryRole::wrong_reducer:
      co_return co_await reduce_wrongly(dht, sizes());
    case AdversaryRole::claimants:
      co_return co_await claim_in_pairs(dht, number);
    case AdversaryRole::ghosts:
      co_return co_await report_as_ghosts(dht, number);
    case AdversaryRole::changeling:
    case AdversaryRole::sybils:
      co_return;  // more than one peer, above
  }
}

}  // namespace

const char* name_of(AdversaryRole role) {
  static constexpr std::array kNames = {"progress liar", "batch claimer", "epoch pusher",     "forging leader",
                                        "lying owner",   "bad donor",     "plausible donor",  "flooder",
                                        "slot holder",   "slow reader",   "inventing leader", "wrong reducer",
                                        "changeling",    "sybils",        "claimants",        "ghosts"};
  return kNames[static_cast<std::size_t>(role)];
}

std::optional<AdversaryRole> role_named(std::string_view name) {
  const auto found = std::ranges::find(kAdversaryRoles, name, name_of);
  return found == kAdversaryRoles.end() ? std::nullopt : std::optional(*found);
}

AdversaryRun::AdversaryRun(std::uint64_t number) : seed(1 + number / kRunsOfASeed) {
  const std::size_t which = number % kRunsOfASeed;
  if (which < kAdversaryRoles.size()) {
    roles = {kAdversaryRoles[which]};
    return;
  }
  roles.assign(kAdversaryRoles.begin(), kAdversaryRoles.end());
  std::shuffle(roles.begin(), roles.end(), std::mt19937_64(number));
  roles.resize(kRolesAtOnce);
}

bool AdversaryRun::has_checks() const {
  return std::ranges::count(roles, AdversaryRole::wrong_reducer) > 0;
}

std::ostream& operator<<(std::ostream& out, const AdversaryRun& run) {
  out << "seed " << run.seed << ", ";
  for (std::size_t i = 0; i < run.roles.size(); ++i) out << (i > 0 ? "," : "") << name_of(run.roles[i]);
  return out;
}

std::string AdversaryReport::harm() const {
  std::string harm;
  const auto add = [&harm](bool harmed, std::string what) {
    if (harmed) harm += (harm.empty() ? "" : "; ") + what;
  };
  add(speed() < kLeastSpeed, log::format("{:.0f} epochs per hour, without hostile peers {:.0f}", run.epochs_per_hour,
                                         without.epochs_per_hour));
  add(run.epochs_alone > 0, log::format("{} epochs alone", run.epochs_alone));
  add(run.astray > kFarthestAstray, log::format("parameters {:.3f} astray", run.astray));
  add(run.over_budget > 0, log::format("{} hosts over budget", run.over_budget));
  return harm;
}

TrainScenario adversary_scenario(std::uint64_t seed) {
  TrainScenario scenario = small_training();
  scenario.seed = seed;
  scenario.trainers = 7;
  scenario.memory_budget = kBudget;
  scenario.dht.max_subkeys = kMostEntries;
  return scenario;
}

namespace {

TrainScenario scenario_of(const AdversaryRun& run) {
  TrainScenario scenario = adversary_scenario(run.seed);
  if (run.has_checks())
    scenario.tune = [](train::RunOptions& options) {
      options.verified_share = kCheckedShare;
      options.grad_aggregation = averaging::ClippedMean();
    };
  return scenario;
}

}  // namespace

const TrainScenarioReport& AdversaryRuns::without(const AdversaryRun& run) {
  if (seed_ != run.seed) without_ = {};
  seed_ = run.seed;
  auto& report = without_[run.has_checks()];
  if (!report) report = run_training(scenario_of(run));
  return *report;
}

AdversaryReport AdversaryRuns::run(const AdversaryRun& run) {
  AdversaryReport report;
  report.without = without(run);
  TrainScenario scenario = scenario_of(run);
  scenario.each_second = [&scenario, &run](TrainSwarm& swarm, double second) {
    if (second != 10) return;
    for (std::size_t i = 0; i < run.roles.size(); ++i)
      swarm.spawn(play(swarm, run.roles[i], scenario, run.seed * 100 + i));
  };
  report.run = run_training(scenario);
  return report;
}

}  // namespace cohive::sim
