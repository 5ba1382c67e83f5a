#include "cohive/rpc/errors.hpp"

#include "cohive/core/error_category.hpp"

namespace cohive::rpc {
namespace {

constexpr ErrorSentence<Errc> kSentences[] = {
    {Errc::handler_failed, "the callee reported an error"},
    {Errc::call_cancelled, "the callee ended the call without an answer"},
    {Errc::frame_too_large, "the message is larger than the protocol allows"},
    {Errc::malformed_frame, "malformed call frame"},
    {Errc::message_after_end, "message behind the end of the stream"},
    {Errc::busy, "the callee is busy, ask again later"},
};

}  // namespace

const std::error_category& rpc_category() noexcept {
  static const ErrorCategory<kSentences> category("cohive.rpc");
  return category;
}

}  // namespace cohive::rpc
