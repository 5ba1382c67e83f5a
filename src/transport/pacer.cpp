#include "pacer.hpp"

#include <algorithm>
#include <cmath>

namespace cohive::transport {
namespace {

// A turn takes a fiftieth of a second, within what is worth a system call and what fits a record.
constexpr double kTurn = 0.02;
constexpr std::size_t kMinQuantum = 1024, kMaxQuantum = 64 * 1024;
constexpr double kBurst = 0.05;  // seconds' worth

}  // namespace

/// A turn that a writer waits for; lives in the waiting coroutine.
struct Pacer::Flow::Request {
  Request(Flow& f, std::size_t size) : flow(f), bytes(size), granted(f.pacer_.runtime_, "bandwidth under the cap") {
    Pacer& pacer = flow.pacer_;
    order = pacer.order_++;
    flow.finish_ = std::max(flow.finish_, pacer.virtual_time_) + static_cast<double>(bytes);
    finish = flow.finish_;
    flow.waiting_ = this;
    pacer.line_.insert(this);
    pacer.serve();
  }
  ~Request() {
    if (flow.waiting_ != this) return;
    flow.waiting_ = nullptr;
    flow.pacer_.line_.erase(this);
  }
  Flow& flow;
  std::size_t bytes;
  double finish = 0;
  std::uint64_t order = 0;
  Event granted;
};

bool Pacer::Earlier::operator()(const Flow::Request* a, const Flow::Request* b) const noexcept {
  return a->finish != b->finish ? a->finish < b->finish : a->order < b->order;
}

Pacer::Pacer(Runtime& runtime, double rate)
    : runtime_(runtime),
      rate_(rate),
      quantum_(static_cast<std::size_t>(std::clamp<double>(rate * kTurn, kMinQuantum, kMaxQuantum))),
      burst_(std::max(rate * kBurst, static_cast<double>(quantum_))),
      tokens_(burst_),
      refilled_(runtime.now()),
      timer_(runtime, [](void* self) { static_cast<Pacer*>(self)->serve(); }, this) {}

/// Lets connections pass for which the tokens suffice, and comes back when they do for the next one.
void Pacer::serve() noexcept {
  const TimePoint now = runtime_.now();
  tokens_ = std::min(burst_, tokens_ + rate_ * to_seconds(now - refilled_));
  refilled_ = now;
  while (!line_.empty()) {
    Flow::Request& next = **line_.begin();
    const auto bytes = static_cast<double>(next.bytes);
    if (tokens_ < bytes) {
      timer_.arm(now + from_seconds((bytes - tokens_) / rate_) + 1us);  // rounding must not make it come too early
      return;
    }
    tokens_ -= bytes;
    virtual_time_ = next.finish;
    line_.erase(line_.begin());
    next.flow.waiting_ = nullptr;
    next.granted.set();
  }
}

Task<bool> Pacer::Flow::turn(std::size_t bytes) {
  if (ended_) co_return false;
  Request request(*this, std::min(bytes, pacer_.quantum_));
  co_await request.granted.wait();
  co_return !ended_;
}

void Pacer::Flow::end() noexcept {
  ended_ = true;
  if (!waiting_) return;
  Request* request = std::exchange(waiting_, nullptr);
  pacer_.line_.erase(request);
  request->granted.set();
}

}  // namespace cohive::transport
