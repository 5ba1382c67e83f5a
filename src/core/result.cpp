#include "cohive/core/result.hpp"

#include <ostream>

namespace cohive {

Error::Error(std::error_code code, std::string detail) : code_(code) {
  if (!detail.empty()) info_ = std::make_shared<Info>(Info{std::move(detail), std::nullopt});
}

Error::Error(std::error_code code, const PeerId& peer, std::string detail)
    : code_(code), info_(std::make_shared<Info>(Info{std::move(detail), peer})) {}

const std::string& Error::detail() const noexcept {
  static const std::string none;
  return info_ ? info_->detail : none;
}

const PeerId* Error::peer() const noexcept { return info_ && info_->peer ? &*info_->peer : nullptr; }

Error Error::with_peer(const PeerId& peer) const { return Error(code_, peer, detail()); }

Error Error::with_context(std::string_view what) const {
  std::string text(what);
  if (!detail().empty()) text += ": " + detail();
  Error error(code_, std::move(text));
  if (const PeerId* id = peer()) return error.with_peer(*id);
  return error;
}

std::string Error::message() const {
  std::string text = detail();
  if (!text.empty()) text += ": ";
  text += code_.message();
  if (const PeerId* id = peer()) text += " (peer " + id->text() + ")";
  return text;
}

std::ostream& operator<<(std::ostream& out, const Error& error) { return out << error.message(); }

ErrorException::ErrorException(Error error) : std::runtime_error(error.message()), error_(std::move(error)) {}

void throw_exception_from_error(const Error& error, const boost::source_location&) { throw ErrorException(error); }

}  // namespace cohive
