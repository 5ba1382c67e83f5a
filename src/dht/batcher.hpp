// Joins what is asked of one peer at the same time into few requests: a bulk store of a thousand keys then takes a few
// calls per replica instead of a thousand.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cohive/core/result.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/dht/errors.hpp"

namespace cohive::dht {

struct BatchLimits {
  std::size_t items = 16;           ///< per request
  std::size_t bytes = 1024 * 1024;  ///< per request, unless a single item is larger
  std::size_t in_flight = 4;        ///< requests to one peer at once; what comes meanwhile waits and is joined
};

/// One answer per item, in order.
template <class Item, class Answer>
class Batcher {
 public:
  using Answers = Result<std::vector<Answer>>;
  using Send = std::function<Task<Answers>(PeerId, std::vector<Item>)>;
  using SizeOf = std::size_t (*)(const Item&);

  Batcher(Runtime& runtime, BatchLimits limits, Send send, SizeOf size_of)
      : runtime_(runtime), limits_(limits), send_(std::move(send)), size_of_(size_of), tasks_(runtime, "dht batches") {}
  ~Batcher() { close(); }

  Task<Answers> call(PeerId peer, std::vector<Item> items) {
    auto pending = std::make_shared<Pending>(runtime_, std::move(items));
    if (closed_) co_return Error(Errc::closed);
    Lane& lane = lanes_[peer];
    lane.waiting.push_back(pending);
    if (lane.in_flight < limits_.in_flight && lane.starting == 0) {
      ++lane.in_flight;
      ++lane.starting;
      tasks_.spawn(drain(*this, peer), "dht batch");
    }
    co_await pending->done.wait();
    co_return std::move(pending->answers);
  }

  /// All requests that still wait get Errc::closed.
  void close() {
    closed_ = true;
    tasks_.cancel();
    for (auto& [peer, lane] : lanes_) fail(lane.waiting, Error(Errc::closed));
    lanes_.clear();
  }

 private:
  struct Pending {
    Pending(Runtime& runtime, std::vector<Item> list)
        : items(std::move(list)), answers(Error(Errc::closed)), done(runtime, "a DHT call") {}
    std::vector<Item> items;
    Answers answers;
    Event done;
  };
  using Queue = std::deque<std::shared_ptr<Pending>>;
  struct Lane {
    Queue waiting;
    std::size_t in_flight = 0;
    std::size_t starting = 0;  // of in_flight, not running yet: they will take what is waiting now
  };
  /// Tells callers whose request was cut off by close().
  struct Batch {
    Queue parts;
    ~Batch() {
      for (auto& part : parts) part->done.set();
    }
  };

  static void fail(Queue& queue, const Error& error) {
    for (auto& pending : queue) {
      pending->answers = error;
      pending->done.set();
    }
    queue.clear();
  }

  Queue take(Lane& lane) {
    Queue batch;
    std::size_t items = 0, bytes = 0;
    while (!lane.waiting.empty()) {
      const auto& next = lane.waiting.front();
      if (next.use_count() > 1) {  // else the caller is gone
        std::size_t more = 0;
        for (const Item& item : next->items) more += size_of_(item);
        if (!batch.empty() && (items + next->items.size() > limits_.items || bytes + more > limits_.bytes)) break;
        items += next->items.size();
        bytes += more;
        batch.push_back(next);
      }
      lane.waiting.pop_front();
    }
    return batch;
  }

  static Task<void> drain(Batcher& self, PeerId peer) {
    --self.lanes_[peer].starting;
    for (;;) {
      Batch batch{self.take(self.lanes_[peer])};
      if (batch.parts.empty()) break;
      // More is waiting than one request holds: another one may go at the same time.
      Lane& lane = self.lanes_[peer];
      if (!lane.waiting.empty() && lane.in_flight < self.limits_.in_flight) {
        ++lane.in_flight;
        ++lane.starting;
        self.tasks_.spawn(drain(self, peer), "dht batch");
      }
      std::vector<Item> items;
      for (const auto& part : batch.parts)
        items.insert(items.end(), std::make_move_iterator(part->items.begin()),
                     std::make_move_iterator(part->items.end()));
      std::vector<std::size_t> sizes;
      for (const auto& part : batch.parts) sizes.push_back(part->items.size());
      auto answers = co_await self.send_(peer, std::move(items));
      if (!answers) fail(self.lanes_[peer].waiting, answers.error());  // the next request would fare no better
      std::size_t at = 0;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        Pending& part = *batch.parts[i];
        if (answers) {
          const auto begin = std::make_move_iterator(answers->begin() + static_cast<std::ptrdiff_t>(at));
          part.answers = std::vector<Answer>(begin, begin + static_cast<std::ptrdiff_t>(sizes[i]));
          at += sizes[i];
        } else {
          part.answers = answers.error();
        }
      }
    }
    Lane& lane = self.lanes_[peer];
    if (--lane.in_flight == 0 && lane.waiting.empty()) self.lanes_.erase(peer);
  }

  Runtime& runtime_;
  BatchLimits limits_;
  Send send_;
  SizeOf size_of_;
  std::unordered_map<PeerId, Lane> lanes_;
  bool closed_ = false;
  TaskGroup tasks_;
};

}  // namespace cohive::dht
