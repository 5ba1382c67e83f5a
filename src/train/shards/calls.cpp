#include "calls.hpp"

#include <algorithm>
#include <span>

#include "cohive/core/combine.hpp"
#include "cohive/rpc/errors.hpp"
#include "cohive/rpc/rpc.hpp"
#include "cohive/transport/errors.hpp"
#include "core/detail/bounded_parse.hpp"
#include "core/detail/jitter.hpp"

namespace cohive::train {
namespace {

constexpr std::size_t kBeam = 5;  // nodes that a search asks; it names twice as many
constexpr std::size_t kMostPlaces = 64;
constexpr std::size_t kMostAvoided = 4096;
// A search costs as much as a minute of reports. A node that has come meanwhile and is nearer is one of three leaders.
constexpr Duration kSearchAgain = 60s, kSearchAtOnce = 2s;
constexpr Duration kLeaderTime = 3s;

}  // namespace

struct ShardCalls::Asking {
  ShardCalls& self;
  proto::ProgressRequest request;
  Deadline deadline;
  std::vector<PeerId> nodes{};
  std::size_t next = 0;
  std::vector<Answer> answers{};
};

ShardCalls::ShardCalls(Dht& dht, const std::string& run_id)
    : dht_(dht), method_(method_of(run_id)), root_key_(root_key_of(run_id)) {}

/// A node that leads nothing may be a trainer that is about to start.
void ShardCalls::avoid(const PeerId& node, const Error& why) {
  if (avoided_.size() >= kMostAvoided) avoided_.clear();
  Avoided& avoided = avoided_[node];
  const bool refuses = why == transport::Errc::protocol_not_supported;
  (refuses ? avoided.refused : avoided.silent).begin(dht_.runtime().now());
}

Task<std::vector<PeerId>> ShardCalls::nodes_of(std::string key, Deadline deadline) {
  Runtime& runtime = dht_.runtime();
  const auto usable = [&](const PeerId& node) {
    const auto at = avoided_.find(node);
    const TimePoint now = runtime.now();
    const bool avoided = at != avoided_.end() && !(at->second.silent.is_over(now) && at->second.refused.is_over(now));
    return !avoided && (node != dht_.host().id() || local_);
  };
  if (const auto known = places_.find(key); known == places_.end() || runtime.now() >= known->second.until) {
    const auto id = dht::DhtId::of(key);
    auto found = co_await dht_.nearest_nodes(id, deadline, kBeam);
    if (!dht_.options().client_mode) found.emplace_back(dht_.node_id(), dht_.host().id());
    std::ranges::sort(found, {}, [&](const auto& node) { return node.first.distance(id); });
    if (places_.size() >= kMostPlaces) places_.clear();
    Place& place = places_[key];
    const std::vector<PeerId> before = std::exchange(place.nodes, {});
    place.searched = runtime.now();
    for (const auto& [node, peer] : found) place.nodes.push_back(peer);
    std::erase_if(place.nearer,
                  [&](const auto& one) { return std::ranges::find(place.nodes, one.first) == place.nodes.end(); });
    const std::size_t leaders = std::min(kLeaders, place.nodes.size());
    const bool same = std::ranges::equal(std::span(place.nodes).first(leaders),
                                         std::span(before).first(std::min(leaders, before.size())));
    const bool in_vain = std::exchange(place.prompted, false) && same;
    place.pause = in_vain ? std::min<Duration>(2 * place.pause, kSearchAgain) : kSearchAtOnce;
    place.until = runtime.now() + detail::jittered(runtime, kSearchAgain);
  }
  std::vector<PeerId> nodes = places_[key].nodes;
  std::erase_if(nodes, [&](const PeerId& node) { return !usable(node); });
  co_return nodes;
}

Task<void> ShardCalls::ask_one(Asking& of, std::uint32_t draw) {
  ShardCalls& self = of.self;
  p2p::Host& host = self.dht_.host();
  while (of.next < of.nodes.size()) {
    const PeerId node = of.nodes[of.next++];
    of.request.set_draw(draw);
    std::string bytes = of.request.SerializeAsString();
    const std::size_t size = bytes.size();
    Result<std::string> reply = Error(cohive::Errc::timeout);
    if (node == host.id()) {
      reply = co_await self.local_(std::move(bytes));
    } else {
      const Deadline deadline = self.dht_.runtime().after(kLeaderTime).min(of.deadline);
      reply = co_await rpc::call_unary(host, node, self.method_, std::move(bytes), deadline);
      self.sent_ += size;
    }
    proto::ProgressReply read;
    if (reply && parse_bounded(read, as_bytes(*reply), kMostReplyFields)) {
      // Each of them is a signature to check.
      if (const int most = static_cast<int>(draw); read.reports_size() > most)
        read.mutable_reports()->DeleteSubrange(most, read.reports_size() - most);
      of.answers.push_back({node, std::move(read)});
      self.avoided_.erase(node);
      co_return;
    }
    self.avoid(node, reply ? Error(cohive::Errc::malformed) : reply.error());
  }
}

Task<std::vector<ShardCalls::Answer>> ShardCalls::ask(std::string key, proto::ProgressRequest request,
                                                      Deadline deadline) {
  const std::uint32_t draw = request.draw();
  Asking asking{*this, std::move(request), deadline};
  asking.nodes = co_await nodes_of(key, deadline);
  const std::size_t drawn = dht_.runtime().random()() % kLeaders;
  Nursery calls(dht_.runtime(), "leaders of a shard");
  for (std::size_t i = 0; i < kLeaders; ++i) calls.spawn(ask_one(asking, i == drawn ? draw : 0), "leader of a shard");
  co_await calls.join();
  look_for_nearer(places_[key], asking.answers);
  co_return std::move(asking.answers);
}

Task<std::vector<ShardCalls::Answer>> ShardCalls::ask_root(Deadline deadline, proto::ProgressRequest request) {
  request.set_root(true);
  co_return co_await ask(root_key_, std::move(request), deadline);
}

/// Leaders that were found when the swarm was smaller may know nodes that should lead in their place. Where half of the
/// trainers ask others than the rest does, none of them knows all. What leaders say in vain is believed ever less.
void ShardCalls::look_for_nearer(Place& place, const std::vector<Answer>& answers) {
  bool prompts = answers.size() < kLeaders;  // those that were found are gone, or lead no longer
  for (const auto& [leader, reply] : answers) {
    const auto at = std::ranges::find(place.nodes, leader);
    const auto rank = static_cast<std::size_t>(at - place.nodes.begin());
    // Of what it knows some may be there no longer: the same count is news once.
    const bool news = std::exchange(place.nearer[leader], reply.nearer()) != reply.nearer();
    prompts = prompts || (news && reply.nearer() > rank);
  }
  if (!prompts) return;
  place.prompted = true;
  place.until = std::min(place.until, place.searched + place.pause);
}

bool ShardCalls::is_nearer(const std::string& key, const PeerId& node) const {
  const auto known = places_.find(key);
  if (known == places_.end()) return false;
  const auto& nodes = known->second.nodes;
  return std::ranges::find(nodes, node) < std::ranges::find(nodes, dht_.host().id());
}

proto::ProgressRequest about(const ShardName& shard) {
  proto::ProgressRequest request;
  request.set_bits(static_cast<std::uint32_t>(shard.bits));
  request.set_shard(shard.number);
  return request;
}

std::optional<ProgressSum> run_in(const std::vector<ShardCalls::Answer>& answers, double now) {
  std::vector<ProgressSum> views;
  for (const auto& [leader, reply] : answers)
    if (const auto view = reply.has_run() ? decode_sum(reply.run(), now) : std::nullopt) views.push_back(*view);
  return middle_of(views, now);
}

}  // namespace cohive::train
