#include "leader.hpp"

#include <algorithm>
#include <cmath>

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/network_of.hpp"
#include "cohive/core/try.hpp"
#include "cohive/dht/errors.hpp"
#include "cohive/rpc/errors.hpp"
#include "core/detail/bounded_parse.hpp"
#include "core/detail/jitter.hpp"
#include "dht/detail/later_expiration.hpp"
#include "train/progress_entry.hpp"
#include "train/strangers.hpp"

namespace cohive::train {
namespace {

constexpr double kCallsPerSecond = 8, kCallsAtOnce = 40;  // of one peer; sixteen times as many of a network
constexpr std::size_t kMostShards = 8;                    // that one node leads
constexpr std::size_t kMostMembers = 1024;
constexpr std::size_t kMostClaims = 4;    // of one shard; the nearest three count
constexpr std::size_t kNearerNodes = 6;   // that may lead nothing, between a key and its leaders
constexpr std::uint32_t kMostDrawn = 16;  // reports in a reply
// A report is renewed every ten seconds. Who was killed has lost its connection; hosts that have many close those of
// trainers that go on.
constexpr Duration kMemberLife = 25s, kLifeLost = 3s;
constexpr Duration kClaimLife = 13s;  // a sum every four
constexpr Duration kShardLife = 60s;  // without a call
constexpr Duration kTellAgain = 4s, kTellSoon = 1500ms, kAddUpAgain = 1s, kTellLeast = 500ms;
constexpr Duration kReadRecord = 4s;
constexpr Duration kOldestRun = 20s;  // that is told on
constexpr Duration kCallTime = 5s;
constexpr Duration kRecordLife = 15s;  // the next node waits as long before it takes the place of one that died
constexpr std::size_t kRecordReplicas = 3, kRecordsDrawn = 16;
// Of the shards, for a sum that Python peers see, or the first one; and for the next ones.
constexpr double kWholeEnough = 0.75, kKnownEnough = 0.5;
constexpr Duration kSparseTime = 60s;  // before there are fewer shards
constexpr double kMoved = 0.97;        // of the trainers, that report in the wanted shards

}  // namespace

ShardLeader::ShardLeader(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, const TrackerOptions& options,
                         ShardCalls& calls)
    : dht_(dht),
      runtime_(dht.runtime()),
      key_(std::move(key)),
      options_(options),
      calls_(calls),
      rates_(kCallsPerSecond, kCallsAtOnce),
      changed_(runtime_, "a shard to add up"),
      claimed_(runtime_, "sums of shards"),
      tasks_(runtime_, "leader of a shard") {}

void ShardLeader::serve() {
  if (server_ || options_.client_mode) return;
  server_.emplace(dht_.host());
  server_->add_unary(ShardCalls::method_of(options_.run_id),
                     [this](PeerId caller, std::string request) { return answer(caller, std::move(request), false); });
  lost_ = dht_.host().on_lost([this](const PeerId& peer) {
    for (auto& [name, shard] : shards_)
      if (const auto member = shard.members.find(peer); member != shard.members.end()) member->second.lost = true;
  });
  calls_.answer_with([this](std::string request) { return answer(dht_.host().id(), std::move(request), true); });
  tasks_.spawn(lead(*this), "lead a shard");
  tasks_.spawn(lead_run(*this), "add up shards");
}

Task<void> ShardLeader::close(Deadline deadline) {
  tasks_.cancel();
  server_.reset();
  lost_.reset();
  calls_.answer_with(nullptr);
  if (std::exchange(written_, false)) co_await write_record({}, deadline);
}

std::string ShardLeader::network_of_caller(const PeerId& caller) const {
  const auto address = dht_.host().remote_address(caller);
  return address ? network_of(*address) : std::string();
}

// ---- What others tell

Task<Result<std::string>> ShardLeader::answer(PeerId caller, std::string bytes, bool local) {
  proto::ProgressRequest request;
  if (!parse_bounded(request, as_bytes(bytes))) co_return Error(cohive::Errc::malformed, "rpc_share");
  if (!local && !rates_.allow(caller, network_of_caller(caller), 1, runtime_.now()))
    co_return Error(rpc::Errc::busy, "more reports of progress than the node takes");
  const ShardName name{static_cast<int>(request.bits()), request.shard()};
  if (request.bits() > kMostBits || name.number >> name.bits != 0)
    co_return Error(cohive::Errc::malformed, "a shard that there cannot be");
  // A caller that has found no nearer node would be counted here, apart from all others.
  const auto key = dht::DhtId::of(request.root() ? root_key_of(options_.run_id) : key_of(options_.run_id, name));
  const std::size_t nearer = nodes_within(dht_.node_id().distance(key), key);
  if (nearer > kNearerNodes) co_return Error(rpc::Errc::busy, "a node that is not near leads nothing");
  proto::ProgressReply reply;
  reply.set_nearer(static_cast<std::uint32_t>(nearer));
  if (!request.root()) {
    CO_TRY(answer_member(caller, request, reply));
  } else {
    if (request.has_sum()) {
      const auto sum = decode_sum(request.sum(), dht_.now());
      if (!sum) co_return Error(cohive::Errc::malformed, "the sum of a shard");
      CO_TRY(co_await take_sum(caller, name, *sum));
    }
    if (const auto run = run_of(dht_.now())) encode_sum(*run, *reply.mutable_run());
    reply.set_writes(written_);
  }
  std::string text = reply.SerializeAsString();
  if (!local) sent_ += text.size();
  co_return text;
}

Result<> ShardLeader::answer_member(const PeerId& caller, const proto::ProgressRequest& request,
                                    proto::ProgressReply& reply) {
  const ShardName name{static_cast<int>(request.bits()), request.shard()};
  if (name != shard_of(options_.run_id, caller, name.bits)) return Error(cohive::Errc::malformed, "another's shard");
  if (!shards_.contains(name)) {
    if (shards_.size() >= kMostShards) return Error(rpc::Errc::busy, "more shards than the node leads");
    changed_.notify_all();
  }
  Shard& shard = shards_[name];
  shard.used = runtime_.now();
  if (request.goodbye()) shard.members.erase(caller);
  if (!request.report().empty()) TRY(take_report(caller, request.report(), shard));
  if (shard.run && dht_.now() - shard.run->time <= to_seconds(kOldestRun)) encode_sum(*shard.run, *reply.mutable_run());
  std::vector<const Member*> others;
  for (const auto& [peer, member] : shard.members)
    if (peer != caller) others.push_back(&member);
  const std::size_t drawn = std::min<std::size_t>(std::min(request.draw(), kMostDrawn), others.size());
  for (std::size_t i = 0; i < drawn; ++i) {
    std::swap(others[i], others[i + runtime_.random()() % (others.size() - i)]);
    reply.add_reports(others[i]->envelope);
  }
  return ok();
}

Result<> ShardLeader::take_report(const PeerId& caller, const std::string& envelope, Shard& shard) {
  const auto opened = open_report(as_bytes(envelope), options_.run_id, dht_.now());
  if (!opened || opened->trainer != caller) return Error(cohive::Errc::malformed, "a report of progress");
  const std::string network = network_of_caller(caller);
  if (!shard.members.contains(caller) && shard.members.size() >= kMostMembers && !make_room(shard, network))
    return ok();  // who is left out is told of the shards that there are by now all the same
  const bool first = shard.members.empty();
  shard.members[caller] = {envelope, opened->report, network, runtime_.now()};
  const std::uint64_t told = shard.told ? shard.told->epoch : 0;
  const auto ahead = static_cast<std::size_t>(
      std::ranges::count_if(shard.members, [told](const auto& member) { return member.second.report.epoch > told; }));
  if (first || ahead > shard.members.size() / 2) changed_.notify_all();
  return ok();
}

/// Identities cost nothing: a trainer of the network that has most of them goes, and none where that is the caller's.
bool ShardLeader::make_room(Shard& shard, const std::string& network) {
  std::unordered_map<std::string, std::size_t> counts;
  for (const auto& [peer, member] : shard.members) ++counts[member.network];
  const auto largest = std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
  if (largest->first == network) return false;
  const auto at = std::ranges::find(shard.members, largest->first, [](const auto& one) { return one.second.network; });
  shard.members.erase(at);
  return true;
}

/// Returns how many nodes this one knows nearer to a key than `distance`.
std::size_t ShardLeader::nodes_within(const dht::DhtId& distance, const dht::DhtId& key) const {
  const auto known = dht_.known_nodes();
  return static_cast<std::size_t>(
      std::ranges::count_if(known, [&](const auto& node) { return node.first.distance(key) < distance; }));
}

/// Where a leader stands is what its node says of itself, as everywhere in the DHT.
Task<Result<>> ShardLeader::take_sum(PeerId caller, ShardName name, ProgressSum sum) {
  const auto known = claims_.find(name);
  dht::DhtId distance;
  if (known != claims_.end() && known->second.contains(caller)) {
    distance = known->second.at(caller).distance;
  } else {
    std::optional<dht::DhtId> node = dht_.node_id();
    if (caller != dht_.host().id()) {
      CO_TRY(auto told, co_await dht_.ping(caller, runtime_.after(kCallTime)));
      node = told;
    }
    if (!node) co_return Error(cohive::Errc::malformed, "a leader that is no node");
    const auto key = dht::DhtId::of(key_of(options_.run_id, name));
    distance = node->distance(key);
    // Nodes of a swarm know few of those near to a key that is far from them. A leader is one of the nearest; a node
    // that claims any number of shards is not, and one that has led before others came does not know it yet.
    if (nodes_within(distance, key) > kNearerNodes) co_return ok();
  }
  sum.trainers = std::min(sum.trainers, static_cast<decltype(sum.trainers)>(kMostMembers));
  Claims& claims = claims_[name];
  claims[caller] = {sum, distance, runtime_.now()};
  std::erase_if(claims, [&](const auto& one) { return !is_fresh(one.second); });
  if (claims.size() > kMostClaims)
    claims.erase(std::ranges::max_element(claims, {}, [](const auto& one) { return one.second.distance; }));
  claimed_.notify_all();
  co_return ok();
}

// ---- What it adds up

bool ShardLeader::is_fresh(const Claim& claim) const {
  return runtime_.now() - claim.heard <= kClaimLife;
}

/// Returns what the nearest leaders say of each shard.
std::vector<ProgressSum> ShardLeader::shards_of(int bits, double now) const {
  std::vector<std::vector<ProgressSum>> views;  // of each shard, the nearest leader's first
  for (const auto& [name, claims] : claims_) {
    if (name.bits != bits) continue;
    std::vector<const Claim*> fresh;
    for (const auto& [leader, claim] : claims)
      if (is_fresh(claim)) fresh.push_back(&claim);
    std::ranges::sort(fresh, {}, &Claim::distance);
    views.emplace_back();
    for (const Claim* claim : fresh) views.back().push_back(claim->sum);
  }
  leave_out_partial(views);
  std::vector<ProgressSum> shards;
  for (const auto& of_one : views)
    if (const auto shard = middle_of(std::span(of_one).first(std::min(kLeaders, of_one.size())), now))
      shards.push_back(*shard);
  return shards;
}

/// More shards at once; fewer only when that lasts.
int ShardLeader::bits_to_tell(const ProgressSum& run) {
  const int wanted = bits_for(run.trainers, run.bits);
  if (wanted >= run.bits) sparse_since_.reset();
  if (wanted < run.bits && !sparse_since_) sparse_since_ = runtime_.now();
  const bool waits = sparse_since_ && runtime_.now() - *sparse_since_ < kSparseTime;
  return waits ? run.bits : wanted;
}

/// While trainers move to more shards or fewer, they stand in the old ones for a while: the new ones count once nearly
/// all are there. Of other numbers of shards than those that the trainers were told nobody honest leads any, but
/// anybody can claim to, unopposed: such claims are heard only where nothing is known yet, and then of nearly all
/// shards.
std::optional<ProgressSum> ShardLeader::largest_run(double now) const {
  const auto largest = [&](bool any, double share) {
    std::optional<ProgressSum> run;
    const auto weight = [this](const ProgressSum& sum) {
      return sum.trainers / (sum.bits == wanted_bits_ ? kMoved : 1);
    };
    for (int bits = 0; bits <= kMostBits; ++bits) {
      if (!any && bits != bits_ && bits != wanted_bits_) continue;
      const auto shards = shards_of(bits, now);
      if (shards.empty() || static_cast<double>(shards.size()) < share * std::exp2(bits)) continue;
      const ProgressSum total = total_of(shards, bits, now);
      if (!run || weight(total) > weight(*run)) run = total;
    }
    return run;
  };
  std::optional<ProgressSum> run;
  if (tells_run_) run = largest(false, kKnownEnough);
  return run ? run : largest(true, kWholeEnough);
}

/// While trainers come from the record, the others are still there.
std::optional<ProgressSum> ShardLeader::run_of(double now) {
  if (!record_read_) return std::nullopt;
  auto run = largest_run(now);
  if (!run) return std::nullopt;
  tells_run_ = true;
  bits_ = run->counted;
  run->bits = wanted_bits_ = bits_to_tell(*run);
  if (others_) {
    const double all = others_->trainers;
    const double strangers = credible_strangers(all - others_there_, std::max(others_there_, run->trainers));
    add_to(*run, *others_, (others_there_ + strangers) / all, now);
  }
  return run;
}

void ShardLeader::forget_old() {
  const TimePoint now = runtime_.now();
  const auto is_gone = [&](const auto& one) {
    const bool lost = one.second.lost && !dht_.host().connected(one.first);
    return now - one.second.heard > (lost ? kLifeLost : kMemberLife);
  };
  for (auto& [name, shard] : shards_) std::erase_if(shard.members, is_gone);
  std::erase_if(shards_, [&](const auto& one) { return now - one.second.used > kShardLife; });
  std::erase_if(claims_, [&](const auto& one) {
    return std::ranges::none_of(one.second, [&](const auto& claim) { return is_fresh(claim.second); });
  });
}

// ---- What it tells

/// What others reckon from the last sum is told anew when it is wrong, and otherwise now and then.
bool ShardLeader::is_to_be_told(const Shard& shard, const ProgressSum& sum) const {
  const TimePoint now = runtime_.now();
  if (!shard.told || now >= shard.due || sum.epoch != shard.told->epoch) return true;
  if (now < shard.next) return false;
  if (!shard.run || shard.run->epoch != sum.epoch) return true;
  const double share = options_.target_batch_size * sum.trainers / std::max(shard.run->trainers, sum.trainers);
  return is_news(sum, *shard.told, share, dht_.now());
}

/// Adds the trainers of a shard up, and tells what they come to if it is worth it.
Task<void> ShardLeader::tell_sum(ShardName name) {
  Shard& shard = shards_[name];
  std::vector<ShardReport> reports;
  for (const auto& [peer, member] : shard.members) reports.push_back(member.report);
  if (reports.empty()) co_return;
  const ProgressSum sum = sum_up(reports, options_.target_batch_size, dht_.now());
  if (!is_to_be_told(shard, sum)) co_return;
  const TimePoint now = runtime_.now();
  shard.told = sum;
  shard.next = now + detail::jittered(runtime_, kTellSoon), shard.due = now + detail::jittered(runtime_, kTellAgain);
  auto request = about(name);
  encode_sum(sum, *request.mutable_sum());
  const auto answers = co_await calls_.ask_root(runtime_.after(kCallTime), std::move(request));
  const auto run = run_in(answers, dht_.now());
  if (run && shards_.contains(name)) shards_[name].run = run;
}

Task<void> ShardLeader::lead(ShardLeader& self) {
  for (;;) {
    self.forget_old();
    if (self.shards_.empty()) co_await self.changed_.wait();
    std::vector<ShardName> names;
    for (const auto& [name, shard] : self.shards_) names.push_back(name);
    for (const ShardName& name : names) co_await self.tell_sum(name);
    co_await self.runtime_.sleep_for(kTellLeast);
    (void)co_await self.changed_.wait(self.runtime_.after(kAddUpAgain - kTellLeast));
  }
}

/// Tells whether a nearer node does, or did until it was lost.
Task<bool> ShardLeader::another_writes() {
  const std::string key = root_key_of(options_.run_id);
  for (const auto& [leader, reply] : co_await calls_.ask_root(runtime_.after(kCallTime)))
    if (reply.writes() && calls_.is_nearer(key, leader)) another_wrote_ = runtime_.now();
  co_return another_wrote_&& runtime_.now() - *another_wrote_ < kRecordLife;
}

/// Reads what others report in the run's record, and writes the sum of the shards into it for peers that read nothing
/// else, where no nearer node does.
Task<void> ShardLeader::lead_run(ShardLeader& self) {
  for (;;) {
    if (self.claims_.empty() && !self.written_) {
      self.others_.reset();
      self.record_read_ = self.tells_run_ = false;
      co_await self.claimed_.wait();
    }
    co_await self.read_record();
    const double now = self.dht_.now();
    (void)self.run_of(now);
    const auto shards = self.shards_of(self.bits_, now);
    const bool whole = static_cast<double>(shards.size()) >= kWholeEnough * std::exp2(self.bits_);
    if (whole && !co_await self.another_writes()) {
      self.written_ = true;
      co_await self.write_record(total_of(shards, self.bits_, now), std::nullopt);
    } else if (std::exchange(self.written_, false)) {
      co_await self.write_record({}, std::nullopt);
    }
    co_await self.runtime_.sleep_for(kReadRecord);
  }
}

Task<void> ShardLeader::read_record() {
  auto found =
      co_await dht_.get_sampled(options_.run_id + "_progress", kRecordReplicas,
                                {.most_entries = kRecordsDrawn, .only_owned = true}, runtime_.after(kCallTime));
  if (!found && found.error() != dht::Errc::not_found) co_return;
  record_read_ = true;
  if (!found) {
    others_.reset();
    co_return;
  }
  const double now = dht_.now();
  std::vector<ShardReport> reports;
  double there = 0;
  for (const auto& [subkey, stored] : found->entries()) {
    const auto entry = read_entry(subkey, stored.value, options_.target_batch_size);
    if (!entry || entry->is_sum() || !is_timely(entry->time, now) || entry->marker == key_->ownership_marker())
      continue;
    reports.push_back({entry->epoch, entry->samples, entry->samples_per_second, entry->time, entry->client});
    there += entry->peer && dht_.host().connected(*entry->peer);
  }
  const double times =
      found->is_sampled() ? static_cast<double>(found->held) / static_cast<double>(found->entries().size()) : 1;
  others_there_ = times * there;
  others_ = reports.empty() ? std::nullopt : std::optional(sum_up(reports, options_.target_batch_size, now, times));
}

Task<void> ShardLeader::write_record(const ProgressSum& run, std::optional<Deadline> deadline) {
  const double now = dht_.now();
  msgpack::Value value;
  if (written_)
    value = entry_value(dht_.host().id(), run.epoch, run.samples_at(now), run.samples_per_second, now, false);
  const double expiration = dht::later_expiration(now + to_seconds(kRecordLife), newest_expiration_);
  const auto stored = co_await dht_.store(options_.run_id + "_progress",
                                          msgpack::Bin{std::string(kSumOfShards) + key_->ownership_marker()},
                                          std::move(value), expiration, deadline);
  if (!stored && written_) log::debug("train", "the sum of the shards is not in the record: {}", stored.error());
}

}  // namespace cohive::train
