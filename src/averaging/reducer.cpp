#include "reducer.hpp"

#include <algorithm>
#include <thread>

#include "cohive/averaging/errors.hpp"

namespace cohive::averaging {

namespace {
constexpr std::size_t kOpenParts = 4;  // whose sums exist at a time
}  // namespace

std::size_t inline_values() {
  static const std::size_t values = std::thread::hardware_concurrency() > 2 ? 16 * 1024 : 256 * 1024;
  return values;
}

Reducer::Reducer(Runtime& runtime, std::vector<std::size_t> lengths, std::size_t senders, std::size_t own)
    : runtime_(runtime),
      lengths_(std::move(lengths)),
      own_(own),
      changed_(runtime, "its turn to contribute"),
      jobs_(runtime, "reducer") {
  for (std::size_t i = 0; i < senders; ++i) active_.insert(i);
  open_parts();
}

void Reducer::open_parts() {
  while (open_.size() < kOpenParts && current_ + open_.size() < lengths_.size()) {
    open_.push_back(std::make_shared<Open>());
    open_.back()->sum = std::make_shared<PartSum>(runtime_, lengths_[current_ + open_.size() - 1]);
  }
}

bool Reducer::complete(const std::set<std::size_t>& contributed, bool but_own) const {
  return std::all_of(active_.begin(), active_.end(),
                     [&](std::size_t sender) { return contributed.contains(sender) || (but_own && sender == own_); });
}

/// What can be added now: all that has come, and our own part when nobody else is missing.
std::vector<Reducer::Contribution> Reducer::next_batch(Open& part) const {
  auto batch = std::exchange(part.waiting, {});
  const auto own = std::find_if(batch.begin(), batch.end(), [this](const auto& one) { return one.sender == own_; });
  if (own == batch.end()) return batch;
  Contribution last = std::move(*own);
  batch.erase(own);
  auto expected = part.contributed;
  for (const auto& one : batch) expected.insert(one.sender);
  (complete(expected, true) ? batch : part.waiting).push_back(std::move(last));
  return batch;
}

bool Reducer::can_work_on(const Open& part) const {
  if (part.averaged) return false;
  const bool others =
      std::any_of(part.waiting.begin(), part.waiting.end(), [this](const auto& one) { return one.sender != own_; });
  return others || (!part.waiting.empty() && complete(part.contributed, true)) || complete(part.contributed, false);
}

Task<Result<PartSumPtr>> Reducer::contribute(std::size_t sender, std::size_t index, double weight, Add add) {
  while (index >= current_ + open_.size() && !finished() && !cancelled_ && !banned(sender)) co_await changed_.wait();
  if (cancelled_ || banned(sender) || index < current_ || finished()) co_return Error(Errc::round_cancelled);
  const OpenPtr part = open_[index - current_];
  if (part->contributed.contains(sender)) co_return Error(Errc::bad_partition, "a part that came twice");
  const auto ticket = std::make_shared<Ticket>(runtime_);
  part->waiting.push_back({sender, weight, std::move(add), ticket});
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

/// Adds what has come and divides when nobody is missing. The job owns all it touches: it may outlive the reducer.
Task<void> Reducer::work_on(Reducer& self, OpenPtr part) {
  while (self.can_work_on(*part)) {
    const auto batch = self.next_batch(*part);
    auto expected = part->contributed;
    for (const auto& one : batch) expected.insert(one.sender);
    const bool last = self.complete(expected, false);
    struct Outcome {
      std::vector<Result<>> added;
      double weight;
      bool empty, divided, has_average;
    };
    auto job = [sum = part->sum, batch, last, weight = part->sum->weight, empty = part->empty]() -> Outcome {
      Outcome outcome{{}, weight, empty, false, false};
      bool all = true;
      for (std::size_t i = 0; i < batch.size(); ++i) {
        Adding how{outcome.empty};
        const double total = outcome.weight + batch[i].weight;
        if (last && all && i + 1 == batch.size() && total > 0) how.divisor = total;
        const auto added = batch[i].add(sum->values(), how);
        all &= added.has_value();
        outcome.added.push_back(added ? ok() : Result<>(added.error()));
        if (!added) continue;
        outcome.weight = total;
        outcome.empty = false;
        outcome.has_average = how.divisor > 0 && *added;
      }
      outcome.divided = last && all;
      if (outcome.divided && batch.empty())
        outcome.has_average = !outcome.empty && outcome.weight > 0 && divide_by_weight(sum->values(), outcome.weight);
      return outcome;
    };
    Outcome outcome = part->sum->length() * std::max<std::size_t>(batch.size(), 1) > inline_values()
                          ? co_await self.runtime_.offload(std::move(job))
                          : job();
    part->sum->weight = outcome.weight;
    part->empty = outcome.empty;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (outcome.added[i]) part->contributed.insert(batch[i].sender);
      batch[i].ticket->outcome = outcome.added[i];
      batch[i].ticket->done.set();
    }
    if (outcome.divided) {
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
  while (!open_.empty() && open_.front()->averaged) {
    open_.pop_front();
    ++current_;
  }
  if (active_.empty()) {  // nobody is left to wait for: the rest stays as it is
    for (const auto& part : open_) part->sum->finished.set();
    open_.clear();
    current_ = lengths_.size();
  }
  open_parts();
  for (const auto& part : std::deque<OpenPtr>(open_)) look_at(part);
  changed_.notify_all();
}

Task<Result<>> Reducer::wait_for(PartSumPtr part) {
  co_await part->finished.wait();
  if (cancelled_) co_return Error(Errc::round_cancelled);
  co_return ok();
}

void Reducer::ban(std::size_t sender) {
  if (active_.erase(sender) == 0) return;
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
