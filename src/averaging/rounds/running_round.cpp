#include "running_round.hpp"

#include <algorithm>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/on_exit.hpp"

namespace cohive::averaging {
namespace {

// Shares of a round's time. What is left of it is for the parts that waited for a sender, and for their answers.
constexpr double kForSenders = 0.8, kForReducers = 0.95;

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
      began_(setup_.host.runtime().now()),
      traffic_(std::make_shared<std::vector<MemberTraffic>>(work_.group->members.size())) {}

Deadline RunningRound::after(double share) const {
  const Duration all = setup_.limits.allreduce.value_or(Duration::zero());
  return all > 0s ? Deadline(began_ + from_seconds(to_seconds(all) * share)) : Deadline::never();
}

Task<Result<>> RunningRound::run() {
  const bool fits = std::ranges::equal(tensors_.infos(), setup_.schema, {}, &TensorInfo::shape, &TensorInfo::shape);
  if (!fits) co_return Error(cohive::Errc::invalid_argument, "tensors that are not those of the averager");
  co_return co_await setup_.options.scheme(*this);
}

Task<Result<>> RunningRound::all_reduce(TensorParts& tensors, std::string phase) {
  AllReduce::Setup setup{{setup_.prefix, work_.group->id + phase, work_.group, work_.own_index},
                         work_.fractions,
                         terms_,
                         setup_.limits.sender.value_or(Duration::zero()),
                         setup_.limits.reducer.value_or(Duration::zero()),
                         traffic_,
                         [this](const PeerId& peer) { return entry_.is_arriving(peer); },
                         setup_.timeout_for,
                         setup_.on_stragglers,
                         after(kForSenders),
                         after(kForReducers)};
  auto made = AllReduce::make(setup_.host, setup_.options, setup_.metrics, std::move(setup), tensors);
  if (!made) co_return made.error();
  if (!entry_.add(work_.group->id + phase, *made)) co_return Error(Errc::bad_partition, "a phase that has been before");
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
