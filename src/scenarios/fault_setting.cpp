#include "scenarios/fault_setting.hpp"

#include "cohive/averaging/group_finder.hpp"
#include "cohive/testing/offences.hpp"

namespace cohive::averaging {

FaultSetting::FaultSetting(std::uint64_t seed, bool one_average)
    : random_(seed * 7919 + 1),
      latency_(from_seconds(0.001 * double(1 + below(40)))),
      swarm_({.seed = seed, .latency = latency_}),
      one_average_(one_average),
      asks_for_(seed) {
  report_.seed = seed;
}

FaultReport FaultSetting::run() {
  (void)below(4);  // see run_faults
  arrange();
  fault_ = static_cast<Fault>(below(is_download() ? static_cast<std::size_t>(Fault::slow) + 1 : kFaults.size()));
  at_message_ = 1 + below(below(2) ? 300 : 60);
  victim_ = below(peers_.size());
  heals_after_ = from_seconds(double(1 + below(20)));
  repeats_ = 1 + below(4);
  report_.scenario +=
      log::format(", {} at message {}, victim {}", kFaults[static_cast<std::size_t>(fault_)], at_message_, victim_);
  swarm_.fabric().set_tap([this](const std::string&, const std::string&, ByteView) { return on_message(); });
  act();
  swarm_.fabric().set_tap(nullptr);
  report_.struck = fault_ >= Fault::not_a_number || (fault_ != Fault::none && messages_ >= at_message_);
  clean_up();
  return std::move(report_);
}

// ---- Arranging

void FaultSetting::arrange() {
  const bool download = is_download();
  const std::size_t count = download ? 3 + below(4) : 2 + below(4);
  AveragerOptions options;
  options.prefix = "faults";
  options.min_matchmaking_time = 2s;
  options.request_timeout = 1s;
  options.sender_timeout = 3s;
  options.reducer_timeout = 6s;
  options.allreduce_timeout = kRoundTimeout;
  const codec::Codec codecs[] = {codec::Codec::none, codec::Codec::none, codec::Codec::float16, codec::Codec::uniform8};
  options.codec = codecs[below(4)];
  options.target_group_size = below(2) ? count : 0;
  const bool measured = !download && below(5) == 0;
  shapes_ = {static_cast<std::uint32_t>(1 + below(3000)), static_cast<std::uint32_t>(below(40))};
  options.part_size_bytes = 128 << below(5);
  if (measured) {  // a link shows what it carries when it has enough to carry
    shapes_[0] += 40'000;
    options.part_size_bytes <<= 5;
    options.min_vector_size = below(3) ? 0 : 10'000;
  }
  if (!download) choose_agreed_codec(options);
  const bool remembers = measured || options.agreed_codec;  // what rounds before have left
  rounds_before_ = remembers ? 1 + below(2) : 0;
  round_after_ = below(remembers ? 2 : 6) == 0;
  report_.scenario = log::format(
      "{} of {} peers{}{}", download ? "download" : "round", count, measured ? ", measured links" : "",
      options.agreed_codec ? log::format(", {}", codec::name_of(options.agreed_codec->fixed()->codec)) : "");
  for (std::size_t i = 0; i < count; ++i) {
    const Aggregation aggregations[] = {Mean(), Mean(), TrimmedMean{0.3}, CenteredClip{0.5, 3}};
    options.aggregation = aggregations[below(4)];  // each peer's own choice
    options.one_average = one_average_ && asks_for_() % 16 > 0;
    options.mode = PeerMode::node;
    if (!download && i > 1 && below(5) == 0) options.mode = below(2) ? PeerMode::client : PeerMode::auxiliary;
    if (measured) {
      const Bandwidth said[] = {Bandwidth::measured(), Bandwidth::measured(), Bandwidth(kSaid), Bandwidth()};
      options.bandwidth = said[below(4)];
    }
    add_peer(options);
    const double rate = measured ? 2.5e5 * static_cast<double>(1 << below(6)) : 0;
    swarm_.fabric().set_line(sim::Swarm::ip(i + 1), {rate, rate});
  }
}

void FaultSetting::choose_agreed_codec(AveragerOptions& options) {
  const std::size_t drawn = below(8);
  if (drawn < 2) options.agreed_codec = codec::CodecSpec(codec::Codec::top_k, drawn ? 0.02 : 0.3);
  if (drawn == 2) options.agreed_codec = codec::Codec::block4;
}

void FaultSetting::add_peer(AveragerOptions options) {
  const bool client = options.mode == PeerMode::client;
  p2p::HostOptions host_options;
  host_options.routing_server = !client;
  auto& host = swarm_.add_host(host_options, !client);
  ids_.push_back(host.id());
  if (group_options(options).caps_shares) want_caps_.insert(host.id());
  auto peer = std::make_unique<Participant>();
  peer->options = options;
  peer->weight = options.mode == PeerMode::auxiliary ? 0 : double(1 + below(3));
  DhtOptions dht_options;
  dht_options.client_mode = client;
  peer->dht = std::make_unique<Dht>(host, dht_options);
  std::vector<Multiaddr> initial;
  for (std::size_t i = 0; i < std::min<std::size_t>(2, peers_.size()); ++i)
    initial.push_back(swarm_.host(i).visible_addresses().front());
  if (auto started = swarm_.run(peer->dht->start(initial)); !started)
    violated("arranging: {}", started.error().message());
  for (std::uint32_t size : shapes_) peer->values.emplace_back(size);
  draw_values(*peer);
  peers_.push_back(std::move(peer));
  make_averager(*peers_.back());
}

void FaultSetting::draw_values(Participant& peer) {
  for (auto& values : peer.values)
    for (float& value : values) value = static_cast<float>(below(2001)) / 1000 - 1;
  peer.inputs = peer.values;
}

void FaultSetting::make_averager(Participant& peer) {
  std::vector<AveragedTensor> tensors;
  for (auto& values : peer.values) tensors.push_back({values, {static_cast<std::uint32_t>(values.size())}});
  peer.averager = std::make_unique<Averager>(*peer.dht, std::move(tensors), peer.options);
  peer.averager->start();
  peer.sharing = std::make_unique<StateSharing>(*peer.dht, StateSharingOptions{.prefix = peer.options.prefix});
  peer.sharing->start();
}

// ---- Faults

bool FaultSetting::on_message() {
  if (!armed_ || ++messages_ < at_message_) return true;
  switch (fault_) {
    case Fault::resets:
      if (messages_ == at_message_ + 17 * broken_ && broken_ < repeats_) {
        ++broken_;
        return false;
      }
      return true;
    default:
      break;
  }
  if (messages_ == at_message_) swarm_.runtime().post([this] { strike(); });
  return true;
}

void FaultSetting::strike() {
  const std::string ip = sim::Swarm::ip(victim_ + 1);
  std::set<std::string> here{ip}, there;
  for (std::size_t i = 0; i < peers_.size(); ++i)
    if (i != victim_) (fault_ == Fault::partition && below(2) ? here : there).insert(sim::Swarm::ip(i + 1));
  switch (fault_) {
    case Fault::crash:
      peers_[victim_]->lost = true;
      swarm_.fabric().crash(ip);
      break;
    case Fault::death: {
      Participant& victim = *peers_[victim_];
      victim.lost = true;
      victim.step.reset();
      victim.averager.reset();
      victim.sharing.reset();
      victim.dht.reset();
      swarm_.remove_host(victim_);
      break;
    }
    case Fault::leave:
      peers_[victim_]->lost = true;
      leaving_ = std::make_unique<TaskGroup>(swarm_.runtime());
      leaving_->spawn([](Averager& averager) -> Task<void> {
        co_await averager.leave(averager.dht().runtime().after(5s));
      }(*peers_[victim_]->averager));
      break;
    case Fault::stall:
    case Fault::partition:
      swarm_.fabric().partition(here, there);
      healing_ = std::make_unique<TaskGroup>(swarm_.runtime());
      healing_->spawn([](sim::Swarm& swarm, Duration after) -> Task<void> {
        co_await swarm.runtime().sleep_for(after);
        swarm.fabric().heal();
      }(swarm_, heals_after_));
      break;
    case Fault::slow: {
      set_links_of_victim(
          {.latency = from_seconds(0.05 * double(1 + below(10))), .bandwidth = double(20'000 << below(6))});
      break;
    }
    default:
      break;
  }
}

void FaultSetting::set_links_of_victim(transport::SimLink link) {
  for (std::size_t i = 0; i < peers_.size(); ++i)
    if (i != victim_) swarm_.fabric().set_link(sim::Swarm::ip(victim_ + 1), sim::Swarm::ip(i + 1), link);
}

// ---- Afterwards

void FaultSetting::clean_up() {
  swarm_.fabric().heal();
  swarm_.pass(30s);
  for (const auto& task : swarm_.runtime().tasks())
    for (const char* group :
         {"all-reduce", "reducer", "replies to a sender", "search for a group", "encoder", "parts to a reducer"})
      if (task.group == group) violated("task left: {}/{} waits for {}", task.group, task.name, task.waiting_for);
  const double offences = sim::offences(swarm_.runtime());
  if (offences > 0 && !has_offender()) violated("{} offences among honest peers", offences);
  healing_.reset();
  leaving_.reset();
  for (auto& peer : peers_) {
    peer->step.reset();
    peer->hostile.reset();
    peer->averager.reset();
    peer->sharing.reset();
    peer->dht.reset();
  }
  if (const std::string left = swarm_.left_behind(); !left.empty()) violated("left behind: {}", left);
}

}  // namespace cohive::averaging
