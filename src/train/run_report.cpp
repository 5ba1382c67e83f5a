#include "run_report.hpp"

#include <regex>
#include <stdexcept>

#include "cohive/proto/run_report.pb.h"

namespace cohive::train {
namespace {

constexpr std::size_t kRounds = 32, kLinks = 128, kMessage = 200, kLongestMessage = 2000;
constexpr Duration kSending = 10s, kFresh = 1s;

}  // namespace

/// Strangers may ask for a report: where peers were dialled, on private networks perhaps, is not theirs to know.
std::string without_addresses(const std::string& message) {
  // A multiaddress; an IP address as a system writes it.
  static const std::regex kAddress(R"re(/(ip4|ip6|ip6zone|dns|dns4|dns6|dnsaddr|unix)/[^\s,;()"']+)re"
                                   R"re(|\b\d{1,3}(\.\d{1,3}){3}(:\d+)?|\[[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\](:\d+)?)re");
  return std::regex_replace(message.substr(0, kLongestMessage), kAddress, "(address)");
}

RunReports::RunReports(p2p::Host& host, const std::string& run_id, std::string schema_hash, const History& history)
    : host_(host), schema_hash_(std::move(schema_hash)), history_(history), server_(host) {
  try {
    server_.add_streaming(run_id + "::Run.rpc_report",
                          [this](rpc::ServerStream& stream) { return serve(*this, stream); });
  } catch (const std::invalid_argument&) {  // a second one on this host
    throw std::invalid_argument("cohive: run \"" + run_id +
                                "\" has an optimizer in this Swarm already: give each a run_id of its own, or a Swarm");
  }
}

Task<Result<>> RunReports::serve(RunReports& self, rpc::ServerStream& stream) {
  const std::string text = self.report();
  co_return co_await stream.send(as_bytes(text), self.host_.runtime().after(kSending));
}

const std::string& RunReports::report() {
  const TimePoint now = host_.runtime().now();
  if (!made_.empty() && now - made_at_ < kFresh) return made_;
  proto::RunReport report;
  report.set_schema_hash(schema_hash_);
  const auto& rounds = history_.kept_rounds();
  for (std::size_t i = rounds.size() - std::min(rounds.size(), kRounds); i < rounds.size(); ++i) {
    auto& round = *report.add_rounds();
    round.set_time(rounds[i].time);
    round.set_averager(rounds[i].what);
    round.set_group_id(to_hex(as_bytes(rounds[i].report->group_id)));
    round.set_members(static_cast<std::uint32_t>(rounds[i].report->group.size()));
    round.set_matchmaking_seconds(static_cast<float>(to_seconds(rounds[i].report->matchmaking)));
    round.set_allreduce_seconds(static_cast<float>(to_seconds(rounds[i].report->allreduce)));
    round.set_outcome(rounds[i].outcome);
    round.set_message(without_addresses(rounds[i].message).substr(0, kMessage));
  }
  for (const auto& peer : host_.peers()) {
    if (peer.round_trip <= Duration::zero()) continue;
    auto& link = *report.add_links();
    link.set_peer_id(peer.id.binary());
    link.set_round_trip_seconds(static_cast<float>(to_seconds(peer.round_trip)));
    if (report.links_size() >= static_cast<int>(kLinks)) break;
  }
  made_ = report.SerializeAsString();
  made_at_ = now;
  return made_;
}

}  // namespace cohive::train
