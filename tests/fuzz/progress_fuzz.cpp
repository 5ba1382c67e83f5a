// What trainers tell each other of their progress, in shards and in the run's record, and of their rounds. The first
// byte says which.
#include <cmath>

#include "cohive/core/msgpack.hpp"
#include "cohive/proto/progress.pb.h"
#include "core/detail/bounded_parse.hpp"
#include "fuzz.hpp"
#include "train/exchanges/parameter_greeting.hpp"
#include "train/link_fit.hpp"
#include "train/progress_entry.hpp"
#include "train/shards/calls.hpp"
#include "train/shards/sums.hpp"

namespace cohive::fuzz {
namespace progress_messages {
namespace {

using namespace train;

constexpr double kNow = 1.7e9, kTarget = 1e6;

bool is_amount(double value) {
  return std::isfinite(value) && value >= 0;
}

void examine(const ProgressSum& sum) {
  for (const double value : {sum.samples, sum.samples_per_second, sum.trainers, sum.clients, sum.samples_at(kNow)})
    expect(is_amount(value), "what a sum comes to is a number");
  expect(sum.bits >= 0 && sum.bits <= kMostBits && sum.counted >= 0 && sum.counted <= kMostBits,
         "there are so many shards at most");
}

void take_sum(const proto::ProgressSum& message) {
  const auto sum = decode_sum(message, kNow);
  if (!sum) return;
  examine(*sum);
  const ProgressSum plain{.epoch = 3, .samples = 100, .samples_per_second = 1, .time = kNow, .trainers = 40};
  const std::vector<ProgressSum> views{*sum, plain, plain};
  if (const auto middle = middle_of(views, kNow)) examine(*middle);
  ProgressSum run = total_of(views, 2, kNow);
  add_to(run, *sum, 0.5, kNow);
  examine(run);
  proto::ProgressSum again;
  encode_sum(*sum, again);
  expect(decode_sum(again, kNow).has_value(), "what was read can be written");
}

void take_report(ByteView envelope) {
  const auto opened = open_report(envelope, "run", kNow);
  if (!opened) return;
  const std::vector<ShardReport> reports{opened->report, {3, 10, 1, kNow, false}};
  examine(sum_up(reports, kTarget, kNow));
}

void request(ByteView bytes) {
  proto::ProgressRequest message;
  if (!parse_bounded(message, bytes)) return;
  if (message.has_sum()) take_sum(message.sum());
  take_report(as_bytes(message.report()));
}

void reply(ByteView bytes) {
  proto::ProgressReply message;
  if (!parse_bounded(message, bytes, kMostReplyFields)) return;
  if (message.has_run()) take_sum(message.run());
  for (const auto& envelope : message.reports()) take_report(as_bytes(envelope));
}

void entry_of_record(ByteView bytes) {
  const auto value = msgpack::decode(bytes);
  if (!value) return;
  const auto entry = read_entry(msgpack::Bin{"marker"}, *value, kTarget);
  if (!entry) return;
  expect(is_amount(entry->samples) && entry->samples <= kTarget, "nobody does more than an epoch");
  expect(is_amount(entry->samples_per_second), "a speed is a number");
}

void greeting(ByteView bytes) {
  auto value = msgpack::decode(bytes);
  if (!value) return;
  if (const auto* items = value->get_if<msgpack::Array>())
    for (const std::size_t at : {std::size_t{0}, std::size_t{2}})
      if (const auto wish = read_wish(*items, at)) {
        expect(wish->target >= 1 && std::isfinite(wish->target), "a wish is for samples");
        const auto outcome = outcome_of({*wish, {1000, false, false}, {2000, true, false}});
        expect(outcome && outcome->target >= 1, "there is an outcome of wishes");
      }
  averaging::Member member;
  member.data = std::move(*value);
  (void)ParameterGreeting::of(member);
}

}  // namespace
}  // namespace progress_messages

COHIVE_FUZZ_TARGET(progress)(ByteView input) {
  using namespace progress_messages;
  Input in(input);
  switch (in.byte() % 5) {
    case 0:
      return request(in.rest());
    case 1:
      return reply(in.rest());
    case 2:
      return take_report(in.rest());
    case 3:
      return entry_of_record(in.rest());
    default:
      return greeting(in.rest());
  }
}

}  // namespace cohive::fuzz
