#include "reducer.hpp"

#include <algorithm>

#include "cohive/averaging/errors.hpp"

namespace cohive::averaging {

Reducer::Reducer(Runtime& runtime, std::vector<std::size_t> lengths, std::size_t senders)
    : lengths_(std::move(lengths)), averages_(lengths_.size()), changed_(runtime, "the other senders' parts") {
  for (std::size_t i = 0; i < senders; ++i) active_.insert(i);
  begin_part();
}

void Reducer::begin_part() {
  contributed_.clear();
  weight_ = 0;
  if (!finished()) accumulator_ = std::make_shared<std::vector<float>>(lengths_[current_], 0.0f);
}

void Reducer::finish_if_complete() {
  while (!finished() && std::includes(contributed_.begin(), contributed_.end(), active_.begin(), active_.end())) {
    if (weight_ > 0) {
      const auto total = static_cast<float>(weight_);  // divided, as Python does: the same bits everywhere
      for (float& value : *accumulator_) value /= total;
      averages_[current_] = std::move(accumulator_);
    }
    ++current_;
    begin_part();
    if (active_.empty()) {  // nobody is left to wait for: the rest stays as it is
      current_ = lengths_.size();
      break;
    }
  }
  changed_.notify_all();
}

Task<Result<>> Reducer::contribute(std::size_t sender, std::size_t index, double weight, std::function<Result<>(std::span<float>)> add) {
  while (current_ < index && !cancelled_ && !banned(sender)) co_await changed_.wait();
  if (cancelled_ || banned(sender) || current_ != index || contributed_.contains(sender)) co_return Error(Errc::round_cancelled);
  if (auto added = add(*accumulator_); !added) co_return added;
  weight_ += weight;
  contributed_.insert(sender);
  finish_if_complete();
  co_return ok();
}

Task<Result<Reducer::Average>> Reducer::average(std::size_t index) {
  while (current_ <= index && !cancelled_) co_await changed_.wait();
  if (cancelled_) co_return Error(Errc::round_cancelled);
  co_return averages_[index];
}

void Reducer::ban(std::size_t sender) {
  if (active_.erase(sender) == 0) return;
  contributed_.erase(sender);
  finish_if_complete();
}

void Reducer::cancel() {
  cancelled_ = true;
  changed_.notify_all();
}

}  // namespace cohive::averaging
