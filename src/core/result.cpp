#include "cohive/core/result.hpp"

#include <algorithm>
#include <ostream>

namespace cohive {
namespace {
constexpr std::size_t kMostCauses = 16;  // more kinds of failures than there are
}  // namespace

Error::Error(std::error_code code, std::string detail) : code_(code) {
  if (!detail.empty()) info_ = std::make_shared<Info>(Info{.detail = std::move(detail)});
}

Error::Error(std::error_code code, const PeerId& peer, std::string detail)
    : Error(code, Info{.detail = std::move(detail), .peer = peer}) {}

const std::string& Error::detail() const noexcept {
  static const std::string none;
  return info_ ? info_->detail : none;
}

const PeerId* Error::peer() const noexcept {
  return info_ && info_->peer ? &*info_->peer : nullptr;
}

std::error_code Error::system() const noexcept {
  return info_ ? info_->system : std::error_code();
}

bool Error::caused_by(std::error_code code) const noexcept {
  return code_ == code || (info_ && std::ranges::find(info_->causes, code) != info_->causes.end());
}

Error Error::with_peer(const PeerId& peer) const {
  Info changed = info();
  changed.peer = peer;
  return {code_, std::move(changed)};
}

Error Error::with_context(std::string_view what) const {
  Info changed = info();
  changed.detail = std::string(what) + (changed.detail.empty() ? "" : ": ") + changed.detail;
  return {code_, std::move(changed)};
}

Error Error::with_cause(const Error& cause) const {
  Info changed = info();
  const auto add = [&changed](std::error_code code) {
    auto& causes = changed.causes;
    if (causes.size() < kMostCauses && std::ranges::find(causes, code) == causes.end()) causes.push_back(code);
  };
  add(cause.code());
  if (cause.info_) std::ranges::for_each(cause.info_->causes, add);
  return {code_, std::move(changed)};
}

Error system_error(std::error_code code, int number, std::string what) {
  const std::error_code system(number, std::system_category());
  return {code, Error::Info{.detail = std::move(what) + ": " + system.message(), .system = system}};
}

std::string Error::message() const {
  std::string text = detail();
  if (!text.empty()) text += ": ";
  text += code_.message();
  if (const PeerId* id = peer()) text += " (peer " + id->text() + ")";
  return text;
}

std::ostream& operator<<(std::ostream& out, const Error& error) {
  return out << error.message();
}

ErrorException::ErrorException(Error error) : std::runtime_error(error.message()), error_(std::move(error)) {}

void throw_exception_from_error(const Error& error, const boost::source_location&) {
  throw ErrorException(error);
}

}  // namespace cohive
