#include "monitor/run_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "cohive/core/errors.hpp"
#include "cohive/proto/run_report.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "core/detail/bounded_parse.hpp"

namespace cohive::tools {
namespace {

constexpr std::size_t kLargest = 64 * 1024;  // bytes; cohive's stay below a third of it
constexpr int kMostRounds = 64, kMostLinks = 256;
constexpr std::size_t kMostFields = 2048;  // a round has eight, a link two
constexpr std::size_t kMostMembers = 1 << 20, kLongestMessage = 300, kLongestHash = 64;
constexpr double kLongestRound = 86400;  // seconds
constexpr double kFarthest = 600;        // seconds there and back
using Round = RunReport::Round;
constexpr std::array kOutcomes = {std::pair{Round::Outcome::ok, "ok"}, std::pair{Round::Outcome::partial, "partial"},
                                  std::pair{Round::Outcome::failed, "failed"},
                                  std::pair{Round::Outcome::missed, "missed"}};

bool within(double value, double most) {
  return value >= 0 && value <= most;  // false for what is no number
}

std::optional<Round> round_from(const proto::RunReport::Round& told) {
  const auto outcome =
      std::ranges::find(kOutcomes, told.outcome(), [](const auto& pair) { return std::string(pair.second); });
  const bool known = told.averager() == "gradients" || told.averager() == "parameters";
  const bool digits = std::ranges::all_of(told.group_id(), [](unsigned char c) { return std::isxdigit(c) != 0; });
  if (outcome == kOutcomes.end() || !known || !digits || told.group_id().size() > 2 * kLongestHash) return std::nullopt;
  if (!std::isfinite(told.time()) || told.members() > kMostMembers) return std::nullopt;
  if (!within(told.matchmaking_seconds(), kLongestRound) || !within(told.allreduce_seconds(), kLongestRound))
    return std::nullopt;
  return Round{.time = told.time(),
               .averager = told.averager(),
               .group_id = told.group_id(),
               .members = told.members(),
               .matchmaking = told.matchmaking_seconds(),
               .allreduce = told.allreduce_seconds(),
               .outcome = outcome->first,
               .message = told.message().substr(0, kLongestMessage)};
}

}  // namespace

std::string_view to_text(Round::Outcome outcome) {
  return std::ranges::find(kOutcomes, outcome, &decltype(kOutcomes)::value_type::first)->second;
}

std::optional<RunReport> run_report_from(ByteView text) {
  proto::RunReport told;
  if (text.size() > kLargest || !parse_bounded(told, text, kMostFields)) return std::nullopt;
  if (told.schema_hash().size() > kLongestHash) return std::nullopt;
  RunReport report{.schema_hash = told.schema_hash(), .rounds = {}, .links = {}};
  for (int i = 0; i < std::min(told.rounds_size(), kMostRounds); ++i)
    if (auto round = round_from(told.rounds(i))) report.rounds.push_back(std::move(*round));
  for (int i = 0; i < std::min(told.links_size(), kMostLinks); ++i)
    if (const auto peer = PeerId::from_bytes(as_bytes(told.links(i).peer_id())); peer)
      if (const double seconds = told.links(i).round_trip_seconds(); within(seconds, kFarthest))
        report.links.push_back({*peer, seconds});
  return report;
}

Task<Result<RunReport>> read_run_report(p2p::Host& host, PeerId peer, std::string run_id, Deadline deadline) {
  auto call = co_await rpc::open_call(host, peer, run_id + "::Run.rpc_report", deadline);
  if (!call) co_return call.error();
  if (auto ended = co_await (*call)->finish(deadline); !ended) co_return ended.error();
  const auto reply = co_await (*call)->receive(deadline);
  if (!reply) co_return reply.error();
  if (!*reply) co_return Error(Errc::malformed, peer, "no report of a run");
  auto report = run_report_from((*reply)->view());
  if (!report) co_return Error(Errc::malformed, peer, "a report of a run");
  co_return std::move(*report);
}

}  // namespace cohive::tools
