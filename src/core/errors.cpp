#include "cohive/core/errors.hpp"

#include <string>

namespace cohive {
namespace {

class Category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "cohive"; }
  std::string message(int code) const override {
    switch (static_cast<Errc>(code)) {
      case Errc::timeout: return "timed out";
      case Errc::cancelled: return "cancelled";
      case Errc::closed: return "closed";
      case Errc::end_of_stream: return "ended before the message was complete";
      case Errc::reset: return "reset by the other side";
      case Errc::malformed: return "malformed data";
      case Errc::limit_exceeded: return "over the limit";
      case Errc::invalid_argument: return "invalid argument";
      case Errc::io: return "input/output error";
      case Errc::not_found: return "not found";
      case Errc::internal: return "internal error";
    }
    return "unknown error";
  }
};

}  // namespace

const std::error_category& core_category() noexcept {
  static const Category category;
  return category;
}

}  // namespace cohive
