#include "cohive/core/errors.hpp"

#include "cohive/core/error_category.hpp"

namespace cohive {
namespace {

constexpr ErrorSentence<Errc> kSentences[] = {
    {Errc::timeout, "timed out"},
    {Errc::cancelled, "cancelled"},
    {Errc::closed, "closed"},
    {Errc::end_of_stream, "ended before the message was complete"},
    {Errc::reset, "reset by the other side"},
    {Errc::malformed, "malformed data"},
    {Errc::limit_exceeded, "over the limit"},
    {Errc::invalid_argument, "invalid argument"},
    {Errc::io, "input/output error"},
    {Errc::not_found, "not found"},
    {Errc::internal, "internal error"},
    {Errc::in_use, "in use by another process"},
};

}  // namespace

const std::error_category& core_category() noexcept {
  static const ErrorCategory<kSentences> category("cohive");
  return category;
}

}  // namespace cohive
