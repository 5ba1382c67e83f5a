#include "cohive/optim/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#include "cohive/core/on_exit.hpp"
#include "cohive/core/task_group.hpp"
#include "optim/detail/norms.hpp"

namespace cohive::optim {
namespace {

/// Done in place up to here: some twenty microseconds.
constexpr std::size_t kInPlace = kStretch;
/// After so many stretches a thread of the pool serves other work first.
constexpr std::size_t kStretchesAtATime = 16;

/// Stretches of some tensors, handed out in order to whatever thread asks.
class Stretches {
 public:
  Stretches(std::vector<std::size_t> sizes, std::function<void(const Stretch&)> work)
      : sizes_(std::move(sizes)), work_(std::move(work)) {
    for (std::size_t size : sizes_) first_.push_back(count_), count_ += (size + kStretch - 1) / kStretch;
  }
  std::size_t count() const { return count_; }

  /// Any thread: works on some. False when none is left.
  bool work_on_some() {
    for (std::size_t done = 0; done < kStretchesAtATime; ++done) {
      const std::size_t index = stopped_ ? count_ : next_++;
      if (index >= count_) return false;
      work_(stretch(index));
    }
    return true;
  }
  void stop() { stopped_ = true; }

 private:
  Stretch stretch(std::size_t index) const {
    const auto after = std::upper_bound(first_.begin(), first_.end(), index);
    const auto tensor = static_cast<std::size_t>(after - first_.begin()) - 1;
    const std::size_t offset = (index - first_[tensor]) * kStretch;
    return {tensor, offset, std::min(kStretch, sizes_[tensor] - offset)};
  }

  std::vector<std::size_t> sizes_;
  std::function<void(const Stretch&)> work_;
  std::vector<std::size_t> first_;  // stretch of each tensor; that of one without values is the next one's
  std::size_t count_ = 0;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> stopped_ = false;
};

Task<void> take_part(Runtime& runtime, std::shared_ptr<Stretches> stretches) {
  const auto work = [stretches] { return stretches->work_on_some(); };
  for (bool more = true; more;) more = co_await runtime.offload(work);
}

}  // namespace

Task<void> for_stretches(Runtime& runtime, std::vector<std::size_t> sizes, std::function<void(const Stretch&)> work,
                         std::size_t threads) {
  std::size_t values = 0;
  for (std::size_t size : sizes) values += size;
  const auto stretches = std::make_shared<Stretches>(std::move(sizes), std::move(work));
  if (values <= kInPlace) {
    while (stretches->work_on_some()) {
    }
    co_return;
  }
  if (runtime.simulated()) {
    const Runtime::OffLoop threads_of_real_loops(runtime);
    while (stretches->work_on_some()) {
    }
    co_return;
  }
  static const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  threads = std::min(threads == 0 ? cores : threads, stretches->count());
  const auto abandon = on_exit([stretches] { stretches->stop(); });
  Nursery helpers(runtime, "optim");
  for (std::size_t i = 0; i < threads; ++i) helpers.spawn(take_part(runtime, stretches), "optim");
  co_await helpers.join();
}

Task<void> run_steps(Runtime& runtime, std::shared_ptr<std::vector<TensorStep>> steps,
                     std::shared_ptr<const void> owner, std::size_t threads) {
  std::vector<std::size_t> sizes, left;
  for (const TensorStep& step : *steps) {
    sizes.push_back(step.size());
    left.push_back(step.has_second_phase() ? step.size() : 0);
  }
  co_await for_stretches(
      runtime, std::move(sizes), [steps, owner](const Stretch& at) { (*steps)[at.tensor].run(at.offset, at.count); },
      threads);
  const auto settle = [steps] {
    for (TensorStep& step : *steps)
      if (step.has_second_phase()) step.settle();
  };
  if (std::ranges::any_of(left, [](std::size_t size) { return size > 0; })) co_await runtime.offload(settle);
  co_await for_stretches(
      runtime, std::move(left), [steps, owner](const Stretch& at) { (*steps)[at.tensor].finish(at.offset, at.count); },
      threads);
}

namespace {

template <class Item, class Size>
std::vector<std::size_t> sizes_of(const std::vector<Item>& items, Size size) {
  std::vector<std::size_t> sizes;
  for (const Item& item : items) sizes.push_back(size(item));
  return sizes;
}

/// For passes that tell whether all is finite: work(item, offset, count) is called for stretches.
template <class Item, class Work>
Task<bool> all_of_stretches(Runtime& runtime, std::vector<std::size_t> sizes, std::vector<Item> items, Work work,
                            std::shared_ptr<const void> owner, std::size_t threads) {
  struct Shared {
    std::vector<Item> items;
    Work work;
    std::shared_ptr<const void> owner;
    std::atomic<bool> all = true;
  };
  const auto shared = std::make_shared<Shared>(std::move(items), std::move(work), std::move(owner));
  co_await for_stretches(
      runtime, std::move(sizes),
      [shared](const Stretch& at) {
        if (!shared->work(shared->items[at.tensor], at.offset, at.count)) shared->all = false;
      },
      threads);
  co_return shared->all.load();
}

}  // namespace

Task<bool> accumulate(Runtime& runtime, std::vector<Addition> additions, Accumulating how,
                      std::shared_ptr<const void> owner, std::size_t threads) {
  auto sizes = sizes_of(additions, [](const Addition& one) { return one.sum.size(); });
  const auto work = [how](const Addition& one, std::size_t offset, std::size_t count) {
    return accumulate(one.gradient.sub(offset, count), one.sum.subspan(offset, count), how);
  };
  return all_of_stretches(runtime, std::move(sizes), std::move(additions), work, std::move(owner), threads);
}

Task<bool> scale(Runtime& runtime, std::vector<View> tensors, double factor, std::shared_ptr<const void> owner,
                 std::size_t threads) {
  auto sizes = sizes_of(tensors, [](const View& one) { return one.size(); });
  const auto work = [factor](const View& one, std::size_t offset, std::size_t count) {
    return scale(one.sub(offset, count), factor);
  };
  return all_of_stretches(runtime, std::move(sizes), std::move(tensors), work, std::move(owner), threads);
}

Task<bool> all_finite(Runtime& runtime, std::vector<ConstView> tensors, std::shared_ptr<const void> owner,
                      std::size_t threads) {
  auto sizes = sizes_of(tensors, [](const ConstView& one) { return one.size(); });
  const auto work = [](const ConstView& one, std::size_t offset, std::size_t count) {
    return all_finite(one.sub(offset, count));
  };
  return all_of_stretches(runtime, std::move(sizes), std::move(tensors), work, std::move(owner), threads);
}

Task<double> square_sum(Runtime& runtime, std::vector<ConstView> tensors, std::shared_ptr<const void> owner,
                        std::size_t threads) {
  struct Shared {
    std::vector<ConstView> tensors;
    std::shared_ptr<const void> owner;
    std::vector<std::vector<double>> sums;
  };
  auto sizes = sizes_of(tensors, [](const ConstView& one) { return one.size(); });
  const auto shared = std::make_shared<Shared>(std::move(tensors), std::move(owner));
  for (std::size_t size : sizes) shared->sums.emplace_back(norm_blocks(size));
  co_await for_stretches(
      runtime, std::move(sizes),
      [shared](const Stretch& at) {
        const std::span<double> sums(shared->sums[at.tensor]);
        block_sums(shared->tensors[at.tensor].sub(at.offset, at.count),
                   sums.subspan(at.offset / kNormBlock, norm_blocks(at.count)));
      },
      threads);
  const auto add_up = [shared] {
    double result = 0;
    for (const auto& sums : shared->sums) result += total(sums);
    return result;
  };
  co_return co_await runtime.offload(add_up);
}

Task<void> copy(Runtime& runtime, std::vector<Copying> copies, std::shared_ptr<const void> owner, std::size_t threads) {
  auto sizes = sizes_of(copies, [](const Copying& one) { return one.to.size(); });
  const auto shared = std::make_shared<std::vector<Copying>>(std::move(copies));
  co_await for_stretches(
      runtime, std::move(sizes),
      [shared, owner](const Stretch& at) {
        const Copying& one = (*shared)[at.tensor];
        copy(one.from.sub(at.offset, at.count), one.to.sub(at.offset, at.count));
      },
      threads);
}

}  // namespace cohive::optim
