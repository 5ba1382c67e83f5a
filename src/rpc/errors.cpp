#include "cohive/rpc/errors.hpp"

#include <string>

namespace cohive::rpc {
namespace {

class Category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "cohive.rpc"; }
  std::string message(int code) const override {
    switch (static_cast<Errc>(code)) {
      case Errc::handler_failed:
        return "the callee reported an error";
      case Errc::call_cancelled:
        return "the callee ended the call without an answer";
      case Errc::frame_too_large:
        return "the message is larger than the protocol allows";
      case Errc::malformed_frame:
        return "malformed call frame";
      case Errc::message_after_end:
        return "message behind the end of the stream";
      case Errc::busy:
        return "the callee is busy, ask again later";
    }
    return "unknown rpc error";
  }
};

}  // namespace

const std::error_category& rpc_category() noexcept {
  static const Category category;
  return category;
}

}  // namespace cohive::rpc
