#include "cohive/train/gradient_sums.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "discard.hpp"

namespace cohive::train {
namespace {
// Beyond the batch that is being added one may wait where it is small: memory shall stay at one batch, and 64 MiB.
constexpr std::size_t kMostUnfinished = 2, kMostWaitingValues = std::size_t{16} << 20;
// So many values are added at a time; their gradients' memory goes before the next ones are added.
constexpr std::size_t kSlice = std::size_t{8} << 20;
}  // namespace

GradientSums::GradientSums(Runtime& runtime, std::shared_ptr<Backend> backend, std::vector<std::size_t> sizes)
    : runtime_(runtime),
      backend_(std::move(backend)),
      sizes_(std::move(sizes)),
      most_unfinished_(
          std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0}) <= kMostWaitingValues ? kMostUnfinished : 1),
      sums_(no_sums()),
      progress_(runtime, "gradients being added"),
      alive_(std::make_shared<GradientSums*>(this)),
      tasks_(runtime, "gradient sums") {}

GradientSums::~GradientSums() {
  *alive_ = nullptr;
}

void GradientSums::add(std::vector<Gradient> batch, double samples, double scale, std::shared_ptr<Transfer> transfer) {
  if (!(samples > 0) || !std::isfinite(samples))
    throw std::invalid_argument("GradientSums: a batch has a positive number of samples");
  backend_->follow_caller();
  {
    std::unique_lock lock(mutex_);
    if (!runtime_.simulated())
      added_.wait(lock, [this] { return failure_ || unfinished_ + cut_unfinished_ < most_unfinished_; });
    if (failure_) std::rethrow_exception(failure_);
    queue_.push_back({std::move(batch), samples, scale, std::move(transfer), generation_});
    ++unfinished_;
  }
  runtime_.post([alive = alive_] {
    GradientSums* self = *alive;
    if (!self || std::exchange(self->working_, true)) return;
    self->tasks_.spawn(work(*self), "gradients of a batch");
  });
}

void GradientSums::cut() {
  backend_->follow_caller();
  const std::lock_guard lock(mutex_);
  ++generation_;
  cut_unfinished_ += std::exchange(unfinished_, 0);
}

Task<void> GradientSums::work(GradientSums& self) {
  try {
    co_await self.add_all();
  } catch (const std::exception&) {
    const std::lock_guard lock(self.mutex_);
    self.failure_ = std::current_exception();
  }
  self.working_ = false;
  self.added_.notify_all();
  self.progress_.notify_all();
}

Task<void> GradientSums::add_all() {
  for (;;) {
    std::optional<Batch> batch;
    {
      const std::lock_guard lock(mutex_);
      if (queue_.empty()) break;
      batch = std::move(queue_.front());
      queue_.pop_front();
    }
    const std::uint64_t generation = batch->generation;
    if (generation != std::exchange(sums_generation_, generation) && !cut_) cut_ = std::exchange(sums_, no_sums());
    co_await add_now(std::move(*batch));
    {
      const std::lock_guard lock(mutex_);
      --(generation == generation_ ? unfinished_ : cut_unfinished_);
    }
    added_.notify_all();
    progress_.notify_all();
  }
}

Task<void> GradientSums::add_now(Batch batch) {
  if (batch.transfer) co_await batch.transfer->done();
  batch.transfer.reset();
  if (sums_.samples == 0) {
    sums_.anchor = batch.samples;
    sums_.scale = batch.scale;
  }
  sums_.samples += batch.samples;
  const double factor = batch.samples / sums_.anchor * (sums_.scale / batch.scale);
  for (std::size_t begin = 0; begin < sizes_.size();) {
    std::size_t end = begin, values = 0;
    while (end < sizes_.size() && values < kSlice) values += sizes_[end++];
    co_await add_slice(std::span(batch.gradients).subspan(begin, end - begin), begin, factor);
    begin = end;
  }
}

/// Takes the gradients of the parameters from number `begin` on. The first gradient of a parameter becomes its sum
/// where nothing else uses its memory; it is looked through only.
Task<void> GradientSums::add_slice(std::span<Gradient> gradients, std::size_t begin, double factor) {
  auto owners = std::make_shared<std::vector<std::shared_ptr<void>>>();
  std::vector<optim::ConstView> unread;
  std::vector<optim::Addition> first, later;
  for (std::size_t i = begin; auto& gradient : gradients) {
    const std::size_t size = sizes_[i];
    Buffer& sum = sums_.values[i++];
    if (gradient.values.empty()) continue;
    if (sum) {
      later.push_back({gradient.values, sum.values});
    } else if (gradient.exclusive && gradient.values.dtype() == optim::DType::float32 && factor == 1) {
      sum = {gradient.owner, {static_cast<float*>(gradient.values.data()), size}};
      unread.push_back(gradient.values);
    } else {
      sum = backend_->allocate(size);
      first.push_back({gradient.values, sum.values});
    }
    owners->push_back(std::move(gradient.owner));
    owners->push_back(sum.owner);
  }
  bool finite = true;
  if (!unread.empty()) finite &= co_await backend_->all_finite(std::move(unread), owners);
  if (!first.empty()) finite &= co_await backend_->accumulate(std::move(first), {factor, true}, owners);
  if (!later.empty()) finite &= co_await backend_->accumulate(std::move(later), {factor}, owners);
  sums_.finite &= finite;
  co_await discard(runtime_, std::move(owners));
}

Task<GradientSums::Sums> GradientSums::take_cut() {
  for (;;) {
    std::uint64_t generation = 0;
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      generation = generation_;
      if (cut_unfinished_ == 0) {
        if (!cut_ && sums_generation_ != generation) {
          cut_ = std::exchange(sums_, no_sums());
          sums_generation_ = generation;
        }
        break;
      }
    }
    co_await progress_.wait();
  }
  co_return cut_ ? std::move(*std::exchange(cut_, std::nullopt)) : no_sums();
}

Task<GradientSums::Taken> GradientSums::take() {
  auto sums = co_await take_cut();
  const double factor = sums.samples > 0 ? sums.anchor / sums.samples / sums.scale : 0;
  Taken taken{std::move(sums.values), {}, factor, sums.finite};
  std::vector<Buffer> empty;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    taken.present.push_back(taken.sums[i] && taken.finite);
    if (taken.present.back()) continue;
    if (!taken.sums[i]) taken.sums[i] = backend_->allocate(sizes_[i]);
    empty.push_back(taken.sums[i]);
  }
  if (!empty.empty()) co_await backend_->clear(std::move(empty));
  co_return taken;
}

Task<void> GradientSums::drop() {
  co_await discard(runtime_, co_await take_cut());
}

}  // namespace cohive::train
