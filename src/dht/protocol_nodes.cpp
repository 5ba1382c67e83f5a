// Nodes that come, go and fail, as calls show them, and the records that newcomers are given.
// Source: docs/wire/hivemind.md, section 3.8.
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/transport/errors.hpp"
#include "p2p/detail/network_block.hpp"
#include "protocol.hpp"

namespace cohive::dht {
namespace {

constexpr std::size_t kHandOverBatch = 64, kHandOverBytes = 1024 * 1024;
constexpr std::size_t kMaxNewcomers = 256;
constexpr Duration kHandOverInterval = 5s;  // of one peer, against node ids that change with every call
constexpr Duration kNewcomerPeriod = 2min;  // a newcomer may still lack what other nodes give it
constexpr std::size_t kMaxHandedOver = 4096;
constexpr std::size_t kMaxFormer = 16;
constexpr std::size_t kMaxCheckedAgain = 64;

}  // namespace

void Protocol::lost(const PeerId& peer) {
  if (table.id_of(peer)) {
    std::erase(former, peer);
    former.push_back(peer);
    if (former.size() > kMaxFormer) former.pop_front();
  }
  table.remove(peer);
  if (table.size() == 0) alone.notify_all();
  update_gauges();
}

void Protocol::heard_from(std::string_view id_bytes, const PeerId& peer) {
  const auto id = DhtId::from_bytes(as_bytes(id_bytes));
  if (!id || *id == node_id || peer == host.id()) return;  // client-mode peers have no id
  const bool known = table.contains(*id);
  std::optional<std::uint64_t> block;
  if (!known) {
    const auto address = host.remote_address(peer);
    if (!address) return;  // gone already
    block = p2p::network_block(*address);
  }
  const auto doubtful = table.add_or_update(*id, peer, runtime.now(), block);
  if (doubtful) tasks_.spawn(check_old_node(*doubtful), "check old node");
  if (known) return;
  std::erase(former, peer);
  metrics.nodes.set(static_cast<double>(table.size()));
  if (options.client_mode || storage.size() == 0 || !table.contains(*id) || newcomers_.size() >= kMaxNewcomers) return;
  if (handed_over_.size() >= kMaxHandedOver) handed_over_.clear();
  const auto [at, first] = handed_over_.try_emplace(peer, runtime.now());
  if (!first && runtime.now() - at->second < kHandOverInterval) return;
  at->second = runtime.now();
  newcomers_.push_back({*id, peer});
  if (!std::exchange(handing_over_, true)) tasks_.spawn(hand_records_over(), "hand records over");
}

/// One that failed may have slept, and is left alone for long by now.
void Protocol::called_by(std::string_view id_bytes, const PeerId& caller) {
  heard_from(id_bytes, caller);
  if (failing.holds(caller, runtime.now())) check_again(caller);
}

void Protocol::check_again(const PeerId& peer) {
  if (checked_again_.size() < kMaxCheckedAgain && checked_again_.insert(peer).second)
    tasks_.spawn(find_out_whether_it_answers(peer), "node that failed");
}

Task<void> Protocol::find_out_whether_it_answers(PeerId peer) {
  const auto once = on_exit([&] { checked_again_.erase(peer); });
  const auto answer = co_await ping(peer, false);
  const bool serves_nothing = !answer && answer.error() == transport::Errc::protocol_not_supported;
  if (answer || serves_nothing)
    failing.answered(peer, runtime.now());
  else if (answer.error() != rpc::Errc::busy)
    failing.failed(peer, runtime.now());
}

/// The least recently seen node of a full bucket keeps its place if it answers.
Task<void> Protocol::check_old_node(NodeEntry node) {
  auto alive = co_await ping(node.peer, false);
  if (!alive && alive.error() == rpc::Errc::busy) co_return;
  if (!alive || *alive != node.id) table.remove(node.id);
}

/// What a newcomer is given.
struct Protocol::HandOver {
  NodeEntry node;
  std::vector<DhtId> keys = {};  // of the next batch
  std::size_t bytes = 0;         // of their records
  bool failed = false;
};

/// Newcomers near a key for which we are responsible get the record, so that a growing swarm keeps finding it. One pass
/// over the records serves all nodes that came since the last one. Few batches exist at a time: anybody may be a
/// newcomer, and those that wait for their turn hold keys, not records.
Task<void> Protocol::hand_records_over() {
  while (!newcomers_.empty()) {
    const auto nodes = std::exchange(newcomers_, {});
    std::vector<std::shared_ptr<HandOver>> targets;
    for (const NodeEntry& node : nodes) targets.push_back(std::make_shared<HandOver>(HandOver{node}));
    std::size_t in_turn = 0;
    for (const DhtId& key : co_await all_keys(storage)) {
      if (++in_turn % kRecordsPerTurn == 0) co_await runtime.yield();
      const auto* record = storage.get(key, now());
      if (!record) continue;
      const auto nearest = table.nearest(key, options.num_replicas);
      // The nearest node that was there before gives it to newcomers: these have nothing to give each other, or
      // something older when they come from another part of a swarm that fell apart.
      const auto first =
          std::find_if(nearest.begin(), nearest.end(), [&](const NodeEntry& node) { return !is_new(node.peer); });
      if (first != nearest.end() && first->id.distance(key) < node_id.distance(key)) continue;
      for (const NodeEntry& node : nearest) {
        const auto i = static_cast<std::size_t>(std::find(nodes.begin(), nodes.end(), node) - nodes.begin());
        if (i == nodes.size() || targets[i]->failed) continue;
        targets[i]->keys.push_back(key);
        targets[i]->bytes += record->bytes();
      }
      for (const auto& target : targets)
        if (target->keys.size() >= kHandOverBatch || target->bytes >= kHandOverBytes) co_await hand_over_batch(target);
    }
    for (const auto& target : targets)
      while (!target->keys.empty()) co_await hand_over_batch(target);
  }
  handing_over_ = false;
}

/// Waits for its turn, not for the newcomer. Records that have grown meanwhile are left for the next batch where they
/// would make this one too large.
Task<void> Protocol::hand_over_batch(std::shared_ptr<HandOver> to) {
  auto turn = co_await hand_overs_.acquire();
  to->bytes = 0;
  if (to->failed) to->keys.clear();
  std::vector<WireRecord> records;
  for (std::size_t bytes = 0; !to->keys.empty() && bytes < kHandOverBytes; to->keys.pop_back()) {
    const auto* record = storage.get(to->keys.back(), now());
    if (!record) continue;
    records.push_back(outgoing(to->keys.back(), *record, false));
    bytes += size_of(records.back());
  }
  if (!records.empty()) tasks_.spawn(send_batch(*this, to, std::move(records), std::move(turn)), "hand records over");
}

bool Protocol::is_new(const PeerId& peer) const {
  const auto at = handed_over_.find(peer);
  return at != handed_over_.end() && runtime.now() - at->second < kNewcomerPeriod;
}

Task<void> Protocol::send_batch(Protocol& self, std::shared_ptr<HandOver> to, std::vector<WireRecord> records,
                                Semaphore::Units /*turn*/) {
  if (to->failed) co_return;
  auto stored = co_await self.store(to->node.peer, std::move(records));
  if (stored) co_return;
  to->failed = true;
  log::debug("dht", "records not handed over: {}", stored.error());
}

}  // namespace cohive::dht
