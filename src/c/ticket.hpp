// Tickets: what was begun, how it ended, and how to give it up.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cohive/codec/tensor.hpp"
#include "cohive/cohive.h"
#include "cohive/core/result.hpp"
#include "fork.hpp"
#include "give_up.hpp"

namespace cohive::c {

/// Any thread. The first end counts.
class Ticket {
 public:
  /// Ends it with bytes for the caller, or with an error.
  void end(Result<std::string> outcome);
  /// Ends it with tensors beside the bytes.
  void end(std::string bytes, std::vector<codec::Tensor> tensors);
  /// Ends it by the exception that is being handled.
  void end_by_exception();

  /// \param give_up  called by cancel(), once, on the caller's thread; see GiveUp
  void on_cancel(std::function<void()> give_up) { give_up_.set(std::move(give_up)); }
  void cancel() { give_up_.ask(); }
  /// Tells whether cancel() was called before the end.
  bool cancelled() const { return give_up_.asked(); }

  std::int32_t wait(std::int64_t timeout_ms);
  void notify(std::uint64_t tag);
  std::int32_t result(const std::uint8_t** data, std::size_t* size);
  std::int32_t tensor(std::size_t index, cohive_tensor* out);

 private:
  void end(std::int32_t code, std::string text);
  GiveUp give_up_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<std::uint64_t> tag_;
  std::int32_t code_ = COHIVE_PENDING;
  std::string text_;  ///< the result, or the sentence
  std::vector<codec::Tensor> tensors_;
};

using TicketPtr = std::shared_ptr<Ticket>;

/// Ends a ticket as closed that nobody else has ended when the work on it is dropped.
class EndGuard {
 public:
  explicit EndGuard(TicketPtr ticket) : ticket_(std::move(ticket)) {}
  EndGuard(EndGuard&&) = default;
  ~EndGuard();

 private:
  TicketPtr ticket_;
};

/// A handle for the caller.
cohive_ticket* handle_of(TicketPtr ticket);

}  // namespace cohive::c

struct cohive_ticket {
  cohive::c::TicketPtr state;
  cohive::c::Origin origin;
};
