#include "running_round.hpp"

#include <algorithm>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/on_exit.hpp"

namespace cohive::averaging {
namespace {

/// Shares of an all-reduce's time. After that of the senders there is time for the parts that waited for one and for
/// their answers, then for checks, and in the end for what is applied.
struct TimeShares {
  double senders, reducers, checks;
};
constexpr TimeShares kUncheckedShares{0.8, 0.95, 1}, kCheckedShares{0.65, 0.8, 0.97};

}  // namespace

Scheme plain_all_reduce() {
  return [](RoundContext& round) { return round.all_reduce(round.tensors(), ""); };
}

Task<Result<WorkDivision>> divide_work(Runtime& runtime, PeerId own, std::shared_ptr<const Group> group,
                                       std::span<const TensorInfo> schema, std::uint64_t min_vector_size) {
  const auto own_index = group->index_of(own);
  if (!own_index) co_return Error(Errc::bad_partition, "we are not in the group");
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : schema) total += tensor.elements();
  std::stop_source stop;  // for a round that is given up meanwhile
  const auto given_up = on_exit([&stop] { stop.request_stop(); });
  auto divide = [total, group, min_vector_size, token = stop.get_token()] {
    return (group->caps_shares ? capped_fractions : peer_fractions)(total, group->members, min_vector_size, token);
  };
  // Bandwidths make a linear program, which takes its time in a large group.
  const bool heavy =
      std::ranges::any_of(group->members, [](const Member& member) { return member.bandwidth.has_value(); });
  auto fractions = heavy ? co_await runtime.offload(std::move(divide)) : divide();
  if (!fractions) co_return fractions.error();
  co_return WorkDivision{std::move(group), *own_index, std::move(*fractions)};
}

RunningRound::RunningRound(Setup setup, WorkDivision work, Terms terms, TensorParts& tensors, Rounds::Entry& entry)
    : setup_(std::move(setup)),
      work_(std::move(work)),
      terms_(terms),
      tensors_(tensors),
      entry_(entry),
      end_(timeout_after(setup_.host.runtime(), setup_.limits.allreduce.value_or(Duration::zero()))),
      traffic_(std::make_shared<std::vector<MemberTraffic>>(work_.group->members.size())) {}

Task<Result<>> RunningRound::run() {
  const bool fits = std::ranges::equal(tensors_.infos(), setup_.schema, {}, &TensorInfo::shape, &TensorInfo::shape);
  if (!fits) co_return Error(cohive::Errc::invalid_argument, "tensors that are not those of the averager");
  co_return co_await setup_.options.scheme(*this);
}

Task<Result<>> RunningRound::all_reduce(TensorParts& tensors, std::string phase) {
  const TimePoint now = runtime().now();
  const double time = to_seconds(end_.remaining(now)) / static_cast<double>(std::max<std::size_t>(to_come_, 1));
  if (to_come_ > 0) --to_come_;
  const auto after = [this, now, time](double share) {
    return end_.is_never() ? Deadline::never() : Deadline(now + from_seconds(time * share));
  };
  const std::string id = work_.group->id + work_.group->view + phase;
  const TimeShares& shares = setup_.options.verified_share > 0 ? kCheckedShares : kUncheckedShares;
  AllReduce::Setup setup{{setup_.prefix, id, work_.group, work_.own_index},
                         work_.fractions,
                         terms_,
                         setup_.limits.sender.value_or(Duration::zero()),
                         setup_.limits.reducer.value_or(Duration::zero()),
                         traffic_,
                         [this](const PeerId& peer) { return entry_.is_arriving(peer); },
                         setup_.timeout_for,
                         setup_.on_stragglers,
                         after(shares.senders),
                         after(shares.reducers),
                         after(shares.checks)};
  auto made = AllReduce::make(setup_.host, setup_.options, setup_.metrics, std::move(setup), tensors);
  if (!made) co_return made.error();
  if (!entry_.add(id, *made)) co_return Error(Errc::bad_partition, "a phase that has been before");
  co_return co_await (*made)->run(tensors, report_);
}

RoundReport RunningRound::report(TimePoint trigger) && {
  RoundReport report = std::move(report_);
  const Group& group = *work_.group;
  report.group_id = group.id;
  report.group = group.members;
  report.leader = group.leader;
  if (group.codecs.agreed) report.agreed_codecs = group.agreed_codecs;
  report.one_average = group.one_average;
  for (const MemberTraffic& member : *traffic_) {
    report.exchanged.push_back(member.summary(trigger));
    report.bytes_sent += report.exchanged.back().bytes_sent;
    report.bytes_received += report.exchanged.back().bytes_received;
  }
  return report;
}

}  // namespace cohive::averaging
