#include "cohive/core/sync.hpp"

#include <algorithm>

namespace cohive {

/// A place in the semaphore's line, given up when the waiting task ends for whatever reason.
struct SemaphorePlace {
  Semaphore& semaphore;
  std::uint64_t ticket;
  explicit SemaphorePlace(Semaphore& s) : semaphore(s), ticket(s.next_ticket_++) { s.line_.push_back(ticket); }
  ~SemaphorePlace() {
    const bool was_first = semaphore.line_.front() == ticket;
    std::erase(semaphore.line_, ticket);
    if (was_first) semaphore.condition_.notify_all();
  }
  bool first() const { return semaphore.line_.front() == ticket; }
};

Semaphore::Units Semaphore::try_acquire(std::size_t count) noexcept {
  if (!line_.empty() || available_ < count) return {};
  available_ -= count;
  return {this, count};
}

Task<Semaphore::Units> Semaphore::acquire(std::size_t count, Deadline deadline) {
  if (auto units = try_acquire(count)) co_return units;
  SemaphorePlace place(*this);
  while (!place.first() || available_ < count) {
    if (!co_await condition_.wait(deadline)) co_return Units();
  }
  available_ -= count;
  co_return Units(this, count);
}

void Semaphore::give_back(std::size_t count) noexcept {
  available_ += count;
  condition_.notify_all();
}

}  // namespace cohive
