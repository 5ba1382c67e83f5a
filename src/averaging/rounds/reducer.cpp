#include "reducer.hpp"

#include <algorithm>

#include "cohive/averaging/errors.hpp"
#include "core/detail/assertion.hpp"

namespace cohive::averaging {

namespace {
constexpr std::size_t kOpenParts = 4;         // whose sums exist at a time
constexpr std::size_t kVoteBytes = 64 << 20;  // kept votes of open parts; one part may be more than that
constexpr std::size_t kRobustCost = 16;       // times the work of a sum, about

std::size_t most_open_parts(const Aggregation& how, const std::vector<std::size_t>& lengths, std::size_t senders) {
  if (std::holds_alternative<Mean>(how) || lengths.empty()) return kOpenParts;
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  return std::clamp<std::size_t>(kVoteBytes / std::max<std::size_t>(1, longest * sizeof(float) * senders), 1,
                                 kOpenParts);
}
}  // namespace

void PartSum::encode(const AnswerCodec& codec) {
  EncodedPart part;
  part.codec = codec.spec.codec;
  const std::span<const float> average(values_, length_);
  if (codec.residuals) {
    std::vector<float> corrected(length_);
    codec.residuals->correct(codec.stretch, average, corrected);
    part.record = codec::encode(codec.spec, corrected);
  } else {
    part.record = part.codec == codec::Codec::none ? memory_ : codec::encode(codec.spec, average);
  }
  part.buffer = part.record.view();
  if (!open_finite(part, length_)) return;
  if (codec.residuals && !codec.residuals->commit(codec.stretch, part.codec, average, part.buffer)) return;
  encoded = std::make_shared<const EncodedPart>(std::move(part));
}

Reducer::Reducer(Runtime& runtime, std::vector<std::size_t> lengths, std::size_t senders, std::size_t own,
                 Aggregation aggregation, std::vector<AnswerCodec> codecs)
    : runtime_(runtime),
      lengths_(std::move(lengths)),
      own_(own),
      aggregation_(aggregation),
      codecs_(std::move(codecs)),
      most_open_(most_open_parts(aggregation_, lengths_, senders)),
      current_since_(runtime.now()),
      changed_(runtime, "its turn to contribute"),
      jobs_(runtime, "reducer") {
  for (std::size_t i = 0; i < senders; ++i) active_.insert(i);
  open_parts();
}

void Reducer::open_parts() {
  while (open_.size() < most_open_ && current_ + open_.size() < lengths_.size()) {
    open_.push_back(std::make_shared<OpenPart>());
    open_.back()->missing = active_.size();
    if (!codecs_.empty()) open_.back()->codec = codecs_[current_ + open_.size() - 1];
    if (!std::holds_alternative<Mean>(aggregation_)) open_.back()->votes = std::make_shared<std::vector<Vote>>();
    open_.back()->sum = std::make_shared<PartSum>(runtime_, lengths_[current_ + open_.size() - 1]);
  }
}

/// Whether no active sender is missing when a batch has been added.
/// \param but_own  our own values may be missing
bool Reducer::complete(const OpenPart& part, const std::vector<Waiting>& batch, bool but_own) const {
  std::size_t missing = part.missing;
  bool has_own = part.contributed.contains(own_) || !active_.contains(own_);
  for (const Waiting& one : batch) {
    missing -= active_.contains(one.sender);
    has_own |= one.sender == own_;
  }
  COHIVE_ASSERT(missing <= active_.size());  // nobody counts twice
  return missing == 0 || (but_own && !has_own && missing == 1);
}

/// What can be added now: all that has come, and our own part when no other sender is missing.
std::vector<Reducer::Waiting> Reducer::next_batch(OpenPart& part) const {
  auto batch = std::exchange(part.waiting, {});
  const auto own = std::find_if(batch.begin(), batch.end(), [this](const auto& one) { return one.sender == own_; });
  if (own == batch.end()) return batch;
  Waiting last = std::move(*own);
  batch.erase(own);
  (complete(part, batch, true) ? batch : part.waiting).push_back(std::move(last));
  return batch;
}

bool Reducer::can_work_on(const OpenPart& part) const {
  if (part.averaged) return false;
  const bool others =
      std::any_of(part.waiting.begin(), part.waiting.end(), [this](const auto& one) { return one.sender != own_; });
  return others || complete(part, {}, !part.waiting.empty());
}

Reducer::Awaited Reducer::awaited() const {
  if (cancelled_ || open_.empty() || open_.front()->busy) return {current_, {}, std::nullopt};
  const OpenPart& part = *open_.front();
  Awaited result{current_, active_, part.wanted};
  if (result.since) result.since = std::max(*result.since, current_since_);
  result.senders.erase(own_);
  for (std::size_t sender : part.contributed) result.senders.erase(sender);
  for (const Waiting& waiting : part.waiting) result.senders.erase(waiting.sender);
  return result;
}

Task<Result<PartSumPtr>> Reducer::contribute(std::size_t sender, std::size_t index, double weight,
                                             std::shared_ptr<Contribution> values) {
  while (index >= current_ + open_.size() && !finished() && !cancelled_ && !banned(sender)) co_await changed_.wait();
  if (cancelled_ || banned(sender) || index < current_ || finished()) co_return Error(Errc::round_cancelled);
  COHIVE_ASSERT(active_.contains(sender) && index - current_ < open_.size());
  const OpenPtr part = open_[index - current_];
  if (part->contributed.contains(sender)) co_return Error(Errc::bad_partition, "a part that came twice");
  const auto ticket = std::make_shared<Ticket>(runtime_);
  part->waiting.push_back({sender, weight, std::move(values), ticket});
  if (sender != own_ && !part->wanted) part->wanted = runtime_.now();
  look_at(part);
  co_await ticket->done.wait();
  if (!ticket->outcome) co_return ticket->outcome.error();
  co_return part->sum;
}

/// Starts what can be done for a part, unless it is being done.
void Reducer::look_at(const OpenPtr& part) {
  if (part->busy || cancelled_ || !can_work_on(*part)) return;
  part->busy = true;
  jobs_.spawn(work_on(*this, part), "sum of a part");
}

Reducer::Outcome Reducer::add_up(PartSum& sum, const std::vector<Waiting>& batch, bool last, Outcome outcome) {
  bool all = true;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Adding how{outcome.empty};
    const double total = outcome.weight + batch[i].weight;
    if (last && all && i + 1 == batch.size() && total > 0) how.divisor = total;
    const auto added = batch[i].values->add(sum.values(), how);
    all &= added.has_value();
    outcome.added.push_back(added ? ok() : Result<>(added.error()));
    if (!added) continue;
    outcome.weight = total;
    outcome.empty = false;
    outcome.has_average = how.divisor > 0 && *added;
  }
  outcome.averaged = last && all;
  if (outcome.averaged && batch.empty())
    outcome.has_average = !outcome.empty && outcome.weight > 0 && divide_by_weight(sum.values(), outcome.weight);
  return outcome;
}

/// As add_up for aggregates that need all votes at once.
Reducer::Outcome Reducer::collect(const Aggregation& how, PartSum& sum, std::vector<Vote>& votes,
                                  const std::vector<Waiting>& batch, bool last, Outcome outcome) {
  bool all = true;
  for (const auto& one : batch) {
    auto opened = one.values->open();
    all &= opened.has_value();
    outcome.added.push_back(opened ? ok() : Result<>(opened.error()));
    if (!opened) continue;
    outcome.weight += one.weight;
    outcome.empty = false;
    votes.push_back({one.sender, one.weight, std::move(*opened)});
  }
  outcome.averaged = last && all;
  if (outcome.averaged) outcome.has_average = aggregate(how, std::exchange(votes, {}), sum.values());
  return outcome;
}

/// Works on what has come, and averages when no sender is missing. The job owns all it touches: it may outlive the
/// reducer.
Task<void> Reducer::work_on(Reducer& self, OpenPtr part) {
  while (self.can_work_on(*part)) {
    const auto batch = self.next_batch(*part);
    const bool last = self.complete(*part, batch, false);
    auto job = [sum = part->sum, votes = part->votes, how = self.aggregation_, batch, last, codec = part->codec,
                before = Outcome{{}, part->sum->weight, part->empty}] {
      auto outcome = votes ? collect(how, *sum, *votes, batch, last, before) : add_up(*sum, batch, last, before);
      if (outcome.has_average && codec) {
        sum->encode(*codec);
        outcome.has_average = sum->encoded != nullptr;
      }
      return outcome;
    };
    const std::size_t cost =
        part->votes ? kRobustCost * (part->contributed.size() + batch.size()) : std::max<std::size_t>(batch.size(), 1);
    auto outcome =
        part->sum->length() * cost > inline_values() ? co_await self.runtime_.offload(std::move(job)) : job();
    COHIVE_ASSERT(outcome.added.size() == batch.size() && outcome.weight >= part->sum->weight && !part->averaged);
    part->sum->weight = outcome.weight;
    part->empty = outcome.empty;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (outcome.added[i]) {
        const bool first = part->contributed.insert(batch[i].sender).second;
        COHIVE_ASSERT(first);  // nobody counts twice
        part->missing -= self.active_.contains(batch[i].sender);
        part->sum->senders.push_back(batch[i].sender);
      }
      batch[i].ticket->outcome = outcome.added[i];
      batch[i].ticket->done.set();
    }
    if (outcome.averaged) {
      part->averaged = true;
      part->sum->has_average = outcome.has_average;
      part->sum->finished.set();
    }
  }
  part->busy = false;
  self.close_parts();
}

/// The window moves on behind averaged parts.
void Reducer::close_parts() {
  COHIVE_ASSERT(open_.size() <= most_open_ && current_ + open_.size() <= lengths_.size());
  while (!open_.empty() && open_.front()->averaged) {
    open_.pop_front();
    ++current_;
    current_since_ = runtime_.now();
  }
  if (active_.empty()) {  // no sender is left to wait for: the rest stays as it is
    for (const auto& part : open_) part->sum->finished.set();
    open_.clear();
    current_ = lengths_.size();
  }
  open_parts();
  for (const auto& part : std::deque<OpenPtr>(open_)) look_at(part);
  changed_.notify_all();
}

Task<Result<>> Reducer::wait_for(PartSumPtr part) {
  if (part) co_await part->finished.wait();
  if (cancelled_) co_return Error(Errc::round_cancelled);
  co_return ok();
}

Task<void> Reducer::wait_for_all() {
  while (!finished() && !cancelled_) co_await changed_.wait();
}

void Reducer::ban(std::size_t sender) {
  if (active_.erase(sender) == 0) return;
  for (const auto& part : open_) part->missing -= !part->contributed.contains(sender);
  close_parts();
}

void Reducer::cancel() {
  cancelled_ = true;
  for (const auto& part : open_) {
    part->sum->finished.set();
    for (const auto& one : std::exchange(part->waiting, {})) {
      one.ticket->outcome = Error(Errc::round_cancelled);
      one.ticket->done.set();
    }
  }
  changed_.notify_all();
}

}  // namespace cohive::averaging
