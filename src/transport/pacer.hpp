// A token bucket that the connections of a process share. A connection that wants to pass more bytes than are left
// waits in a fair queue (self-clocked fair queueing: by the virtual time at which its bytes would have passed if all
// that wait had equal shares), so busy connections get equal rates and the few bytes of a quiet one pass before their
// next turn.
#pragma once

#include <set>

#include "cohive/core/sync.hpp"

namespace cohive::transport {

class Pacer {
 public:
  /// \param rate  bytes per second, positive
  Pacer(Runtime& runtime, double rate);

  /// One direction of one connection. Must not outlive the pacer.
  class Flow {
   public:
    explicit Flow(Pacer& pacer) : pacer_(pacer) {}
    ~Flow() { end(); }
    Flow(const Flow&) = delete;

    /// Waits until so many bytes, at most quantum(), may pass. False when the flow was ended. One at a time.
    Task<bool> turn(std::size_t bytes);
    void end() noexcept;

   private:
    friend class Pacer;
    struct Request;
    Pacer& pacer_;
    double finish_ = 0;  // virtual time
    Request* waiting_ = nullptr;
    bool ended_ = false;
  };

  /// What passes at one turn at most, and what may pass at once after a pause.
  std::size_t quantum() const noexcept { return quantum_; }
  double burst() const noexcept { return burst_; }

 private:
  struct Earlier {
    bool operator()(const Flow::Request* a, const Flow::Request* b) const noexcept;
  };
  void serve() noexcept;

  Runtime& runtime_;
  const double rate_;
  const std::size_t quantum_;
  const double burst_;
  double tokens_;
  TimePoint refilled_;
  double virtual_time_ = 0;  // bytes of one busy flow
  std::uint64_t order_ = 0;
  std::set<Flow::Request*, Earlier> line_;
  Timer timer_;
};

}  // namespace cohive::transport
