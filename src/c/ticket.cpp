#include "ticket.hpp"

#include <utility>

#include "cohive/core/errors.hpp"
#include "errors.hpp"
#include "events.hpp"
#include "tensors.hpp"

namespace cohive::c {

void Ticket::end(Result<std::string> outcome) {
  if (outcome)
    end(COHIVE_OK, std::move(*outcome));
  else
    end(code_of(outcome.error()), outcome.error().message());
}

void Ticket::end(std::string bytes, std::vector<codec::Tensor> tensors) {
  {
    const std::lock_guard lock(mutex_);
    if (code_ == COHIVE_PENDING) tensors_ = std::move(tensors);
  }
  end(COHIVE_OK, std::move(bytes));
}

void Ticket::end_by_exception() {
  const std::int32_t code = fail_by_exception();
  end(code, cohive_last_error());
}

void Ticket::end(std::int32_t code, std::string text) {
  give_up_.end();  // what it posts to may go as soon as this returns
  std::optional<std::uint64_t> tag;
  {
    const std::lock_guard lock(mutex_);
    if (code_ != COHIVE_PENDING) return;
    code_ = code;
    text_ = std::move(text);
    tag = tag_;
    ended_.notify_all();
  }
  if (tag) push_event({COHIVE_EVENT_TICKET, 0, *tag, {}, {}});
}

std::int32_t Ticket::wait(std::int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  const auto over = [this] { return code_ != COHIVE_PENDING; };
  if (timeout_ms < 0)
    ended_.wait(lock, over);
  else
    ended_.wait_for(lock, wait_of(timeout_ms), over);
  return code_ == COHIVE_OK || code_ == COHIVE_PENDING ? code_ : fail(code_, text_);
}

void Ticket::notify(std::uint64_t tag) {
  {
    const std::lock_guard lock(mutex_);
    tag_ = tag;
    if (code_ == COHIVE_PENDING) return;
  }
  push_event({COHIVE_EVENT_TICKET, 0, tag, {}, {}});
}

std::int32_t Ticket::result(const std::uint8_t** data, std::size_t* size) {
  const std::lock_guard lock(mutex_);
  there(data, "data") = nullptr;
  there(size, "size") = 0;
  if (code_ == COHIVE_PENDING) return code_;
  if (code_ != COHIVE_OK) return fail(code_, text_);
  *data = reinterpret_cast<const std::uint8_t*>(text_.data());
  *size = text_.size();
  return COHIVE_OK;
}

std::int32_t Ticket::tensor(std::size_t index, cohive_tensor* out) {
  const std::lock_guard lock(mutex_);
  there(out, "tensor") = {};
  if (code_ != COHIVE_OK) return code_ == COHIVE_PENDING ? code_ : fail(code_, text_);
  if (index >= tensors_.size()) return fail(COHIVE_NOT_FOUND, "there is no such tensor");
  *out = view_of(tensors_[index]);
  return COHIVE_OK;
}

EndGuard::~EndGuard() {
  if (ticket_) ticket_->end(Error(cohive::Errc::closed, "the swarm was left meanwhile"));
}

cohive_ticket* handle_of(TicketPtr ticket) {
  return new cohive_ticket{std::move(ticket), {}};
}

/// Runs `body(ticket)` where the handle is alive.
template <class F>
std::int32_t with_ticket(cohive_ticket* ticket, F body) noexcept {
  return with_handle(ticket, "ticket", [&] { return static_cast<std::int32_t>(body(*ticket->state)); });
}

}  // namespace cohive::c

using namespace cohive::c;

std::int32_t cohive_ticket_wait(cohive_ticket* ticket, std::int64_t timeout_ms) {
  return with_ticket(ticket, [&](Ticket& state) { return state.wait(timeout_ms); });
}

std::int32_t cohive_ticket_result(cohive_ticket* ticket, const std::uint8_t** data, std::size_t* size) {
  return with_ticket(ticket, [&](Ticket& state) { return state.result(data, size); });
}

std::int32_t cohive_ticket_notify(cohive_ticket* ticket, std::uint64_t tag) {
  return with_ticket(ticket, [&](Ticket& state) {
    state.notify(tag);
    return COHIVE_OK;
  });
}

std::int32_t cohive_ticket_cancel(cohive_ticket* ticket) {
  return with_ticket(ticket, [](Ticket& state) {
    state.cancel();
    return COHIVE_OK;
  });
}

std::int32_t cohive_ticket_tensor(cohive_ticket* ticket, std::size_t index, cohive_tensor* tensor) {
  return with_ticket(ticket, [&](Ticket& state) { return state.tensor(index, tensor); });
}

void cohive_ticket_free(cohive_ticket* ticket) {
  if (ticket && !ticket->origin.elsewhere()) delete ticket;
}
