// A swarm as the caller holds it: there from the beginning, joined on a thread of its own.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "cohive/core/errors.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/train/swarm.hpp"
#include "ticket.hpp"
#include "train/detail/membership.hpp"

namespace cohive::c {

/// Any thread, but for what says otherwise.
class SwarmState : public std::enable_shared_from_this<SwarmState> {
 public:
  ~SwarmState();
  /// Joins, in the background; `joined` ends with what status() gives.
  void open(SwarmOptions options, TicketPtr joined);
  /// Leaves, in the background: what goes on is dropped.
  void close(TicketPtr closed);
  /// Starts the task made by `make(membership)` on the loop, whose end is that of the ticket.
  void begin(TicketPtr ticket, std::function<Task<Result<std::string>>(train::Membership&)> make);
  /// Keeps what stands on the swarm's DHT until it is dropped or the swarm is left. Loop thread; see on_loop().
  void keep(std::uint64_t id, std::shared_ptr<void> object) { objects_[id] = std::move(object); }
  void drop(std::uint64_t id) { objects_.erase(id); }
  /// Hands it over to the task that ends it: no other call finds it meanwhile, and freeing its handle leaves it alone.
  /// Loop thread. Null where it was dropped.
  template <class T>
  std::shared_ptr<T> take(std::uint64_t id) {
    const auto taken = objects_.extract(id);
    return taken ? std::static_pointer_cast<T>(taken.mapped()) : nullptr;
  }
  /// Loop thread. Throws where it was dropped.
  template <class T>
  T& object(std::uint64_t id) {
    const auto found = objects_.find(id);
    if (found == objects_.end()) throw ErrorException(Error(cohive::Errc::closed, "it was shut down"));
    return *static_cast<T*>(found->second.get());
  }
  /// The swarm, for what ends before it: `end` is called when the swarm is to be left, on another thread, and returns
  /// when nothing of that uses it any more.
  Swarm& use(std::uint64_t id, std::function<void()> end);
  /// What used it has ended by itself.
  void used(std::uint64_t id);
  /// Runs it on the loop, and waits for it.
  void on_loop(const std::function<void(train::Membership&)>& work);

 private:
  enum class Stage { opening, open, closed };
  void run_open(SwarmOptions options, TicketPtr joined);
  /// Returns when all is gone, also where another thread has begun to leave.
  void run_close();
  void leave(std::unique_ptr<Swarm> swarm, const std::map<std::uint64_t, std::function<void()>>& users);
  std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::opening;
  bool unwanted_ = false;  ///< close() was called
  bool leaving_ = false;   ///< a thread is in leave()
  std::unique_ptr<Swarm> swarm_;
  std::unique_ptr<TaskGroup> tasks_;  ///< loop thread, as the next one
  std::map<std::uint64_t, std::shared_ptr<void>> objects_;
  std::map<std::uint64_t, std::function<void()>> users_;  ///< under the mutex
};

/// Loop thread: what cohive_swarm_status() tells.
std::string status_of(train::Membership& membership);

}  // namespace cohive::c

struct cohive_swarm {
  std::shared_ptr<cohive::c::SwarmState> state;
  cohive::c::Origin origin;
};

namespace cohive::c {
/// The state of a handle that is alive; throws else.
std::int32_t with_swarm(cohive_swarm* swarm, const std::function<void(SwarmState&)>& body) noexcept;
}  // namespace cohive::c
