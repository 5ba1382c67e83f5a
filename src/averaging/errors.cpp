#include "cohive/averaging/errors.hpp"

#include <string>

namespace cohive::averaging {
namespace {

class Category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "cohive.averaging"; }
  std::string message(int code) const override {
    switch (static_cast<Errc>(code)) {
      case Errc::no_group:
        return "no averaging group was formed in time";
      case Errc::nobody_reduces:
        return "no member of the group can reduce (all are clients)";
      case Errc::bad_partition:
        return "the group's parts do not fit together: same tensors, codec and part size everywhere?";
      case Errc::no_donor:
        return "no peer shares its state";
      case Errc::bad_state:
        return "the downloaded state does not fit";
      case Errc::narrow_path:
        return "the relay in between carries too little";
      case Errc::round_cancelled:
        return "the averaging round was cancelled";
      case Errc::refused:
        return "a member of the group refused our parts";
      case Errc::not_finite:
        return "a part holds a number that is not finite";
      case Errc::members_left:
        return "all peers that this one waited for have left";
      case Errc::left:
        return "this peer has left its averaging groups";
      case Errc::wrong_average:
        return "an average is not what was contributed to it";
      case Errc::slow_reader:
        return "it reads too slowly";
      case Errc::state_changed:
        return "the state is not any more what it was when its download began";
    }
    return "unknown averaging error";
  }
};

}  // namespace

const std::error_category& averaging_category() noexcept {
  static const Category category;
  return category;
}

}  // namespace cohive::averaging
