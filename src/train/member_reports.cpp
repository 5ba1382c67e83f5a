#include "member_reports.hpp"

#include <algorithm>
#include <stdexcept>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/rpc/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "train/shards/sums.hpp"

namespace cohive::train {
namespace {

constexpr std::size_t kAskedAtOnce = 16, kMostRemembered = 4096;
constexpr Duration kAnswerTime = 3s;
constexpr Duration kAskAgain = 2s, kAskAfterFailure = 10s, kAskOthersAgain = 10min;  // who do not know the call
constexpr Duration kToldFor = 60s;  // as long as a report in the record

}  // namespace

MemberReports::MemberReports(Dht& dht, std::string run_id, std::function<std::optional<ShardReport>()> own)
    : dht_(dht), method_(std::move(run_id) + "::Progress.rpc_report"), own_(std::move(own)) {}

void MemberReports::serve() {
  server_.emplace(dht_.host());
  try {
    server_->add_unary(method_, [this](PeerId caller, std::string) -> Task<Result<std::string>> {
      const auto report = own_();
      if (!report) co_return Error(cohive::Errc::cancelled, caller, "this peer does not train");
      co_return encode_report(*report);
    });
  } catch (const std::invalid_argument&) {  // another tracker of this host answers already
    server_.reset();
  }
}

const ShardReport* MemberReports::told(const PeerId& peer) const {
  const auto at = members_.find(peer);
  if (at == members_.end() || !at->second.report || dht_.runtime().now() - at->second.heard > kToldFor) return nullptr;
  return &*at->second.report;
}

Task<void> MemberReports::ask_one(MemberReports& self, PeerId peer, bool& news) {
  Runtime& runtime = self.dht_.runtime();
  auto answer =
      co_await rpc::call_unary(self.dht_.host(), peer, self.method_, std::string(), runtime.after(kAnswerTime));
  Member& member = self.members_[peer];
  const auto report = answer ? decode_report(as_bytes(*answer), self.dht_.now()) : std::nullopt;
  const bool unknown = !answer && answer.error() == transport::Errc::protocol_not_supported;
  member.again = runtime.now() + (report ? kAskAgain : unknown ? kAskOthersAgain : kAskAfterFailure);
  member.heard = runtime.now();
  news = news || (report && (!member.report || member.report->epoch != report->epoch));
  member.report = report;
}

Task<bool> MemberReports::ask(std::vector<PeerId> peers) {
  const TimePoint now = dht_.runtime().now();
  std::erase_if(peers, [&](const PeerId& peer) {
    const auto at = members_.find(peer);
    return !dht_.host().connected(peer) || (at != members_.end() && now < at->second.again);
  });
  if (members_.size() + peers.size() > kMostRemembered) members_.clear();
  std::ranges::shuffle(peers, dht_.runtime().random());
  peers.resize(std::min(peers.size(), kAskedAtOnce));
  bool news = false;
  Nursery calls(dht_.runtime(), "members whose reports are missing");
  for (const PeerId& peer : peers) calls.spawn(ask_one(*this, peer, news), "a member whose report is missing");
  co_await calls.join();
  co_return news;
}

}  // namespace cohive::train
