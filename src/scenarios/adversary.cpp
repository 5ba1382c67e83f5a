#include "scenarios/adversary.hpp"

#include <algorithm>
#include <random>

#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/group_finder.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/try.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/proto/averaging.pb.h"
#include "cohive/rpc/rpc.hpp"
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

Task<void> join_and_lie(Dht& dht, std::vector<std::uint32_t> sizes, std::uint64_t seed) {
  averaging::AveragerOptions options;
  options.prefix = kGradients;
  options.class_name = "GradientAverager";
  options.part_size_bytes = 4096;
  averaging::HostilePeer hostile(dht, options, std::move(sizes), seed);
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

/// Turns what an honest donor shares around: the same epoch, names and shapes, and a model that has learnt the opposite.
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

Task<void> play(TrainSwarm& swarm, AdversaryRole role, const TrainScenario& scenario, std::uint64_t number) {
  Dht& dht = *co_await swarm.stranger();
  switch (role) {
    case AdversaryRole::progress_liar:
      co_return co_await lie_about_progress(dht, std::make_shared<dht::RsaSignatureValidator>());
    case AdversaryRole::batch_claimer:
      co_return co_await claim_batches(dht, std::make_shared<dht::RsaSignatureValidator>(), 0);
    case AdversaryRole::epoch_pusher:
      co_return co_await claim_batches(dht, std::make_shared<dht::RsaSignatureValidator>(), 1);
    case AdversaryRole::forging_leader:
      co_return co_await lead_and_forge(dht, 0);
    case AdversaryRole::lying_owner:
      co_return co_await join_and_lie(
          dht, {static_cast<std::uint32_t>(scenario.features), static_cast<std::uint32_t>(scenario.ballast)}, number);
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
      co_return co_await reduce_wrongly(
          dht, {static_cast<std::uint32_t>(scenario.features), static_cast<std::uint32_t>(scenario.ballast)});
  }
}

}  // namespace

const char* name_of(AdversaryRole role) {
  static constexpr std::array kNames = {"progress liar", "batch claimer",   "epoch pusher", "forging leader", "lying owner",
                                        "bad donor",     "plausible donor", "flooder",      "slot holder",    "slow reader",
                                        "inventing leader", "wrong reducer"};
  return kNames[static_cast<std::size_t>(role)];
}

TrainScenario adversary_scenario(std::uint64_t seed) {
  TrainScenario scenario = small_training();
  scenario.seed = seed;
  scenario.trainers = 7;
  return scenario;
}

std::vector<AdversaryRole> some_roles(std::uint64_t seed) {
  using enum AdversaryRole;
  std::vector<AdversaryRole> roles{progress_liar, forging_leader, lying_owner, bad_donor, flooder, slot_holder, slow_reader};
  std::shuffle(roles.begin(), roles.end(), std::mt19937_64(seed));
  roles.resize(3);
  return roles;
}

AdversaryReport run_adversaries(std::uint64_t seed, std::vector<AdversaryRole> roles) {
  TrainScenario scenario = adversary_scenario(seed);
  if (std::ranges::count(roles, AdversaryRole::wrong_reducer))
    scenario.tune = [](train::RunOptions& options) {
      options.verified_share = kCheckedShare;
      options.grad_aggregation = averaging::ClippedMean();
    };
  AdversaryReport report;
  report.seed = seed;
  report.roles = roles;
  const TrainScenarioReport without = run_training(scenario);
  report.epochs_without = without.epochs;
  report.loss_without = without.last_loss;
  scenario.each_second = [&scenario, &roles, seed](TrainSwarm& swarm, double second) {
    if (second != 10) return;
    for (std::size_t i = 0; i < roles.size(); ++i) swarm.spawn(play(swarm, roles[i], scenario, seed * 100 + i));
  };
  report.run = run_training(scenario);
  report.epochs = report.run.epochs;
  return report;
}

}  // namespace cohive::sim
