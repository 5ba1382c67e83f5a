/// \file
/// Result<T>: what a remote failure looks like. Defects and programmer errors are exceptions instead.
#pragma once

#include <boost/system/result.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cohive/core/peer_id.hpp"

namespace cohive {

/// An expected failure: a code (each module has its own in errors.hpp), the peer it concerns and what was being done.
/// Programs decide by codes alone: texts are for people.
class Error {
 public:
  Error() = default;
  /// \param code   a std::error_code or any enumerator registered as one
  /// \param detail free text; peer-supplied parts must already be escaped (see log::quoted)
  explicit Error(std::error_code code, std::string detail = {});
  /// The same, of what a peer did or did not do.
  Error(std::error_code code, const PeerId& peer, std::string detail = {});

  /// Returns the code; compare the error itself with an Errc.
  const std::error_code& code() const noexcept { return code_; }
  const std::string& detail() const noexcept;
  /// The peer concerned, or null.
  const PeerId* peer() const noexcept;
  /// Returns what the operating system said, which compares with std::errc; no error where it was not asked.
  std::error_code system() const noexcept;
  /// Tells whether this is such an error, or sums up one.
  bool caused_by(std::error_code code) const noexcept;
  /// The same error with the peer named, or with `what` put in front of the detail.
  Error with_peer(const PeerId& peer) const;
  /// Returns the same error with `what` before its detail.
  Error with_context(std::string_view what) const;
  /// Returns the same error that sums `cause` up, too: for caused_by(). A few different codes are kept.
  Error with_cause(const Error& cause) const;
  /// One sentence: "<context>: <code's message> (peer <id>)".
  std::string message() const;

  friend bool operator==(const Error& error, std::error_code code) { return error.code_ == code; }

 private:
  friend Error system_error(std::error_code code, int number, std::string what);
  struct Info {
    std::string detail = {};
    std::optional<PeerId> peer = std::nullopt;
    std::error_code system = {};
    std::vector<std::error_code> causes = {};
  };
  Error(std::error_code code, Info info) : code_(code), info_(std::make_shared<const Info>(std::move(info))) {}
  Info info() const { return info_ ? *info_ : Info(); }
  std::error_code code_;
  std::shared_ptr<const Info> info_;
};

/// Returns the error of a failed call of the operating system: its detail is "<what>: <the system's sentence>", and
/// Error::system() has the number.
/// \param number  errno, or what stands for it
Error system_error(std::error_code code, int number, std::string what);

/// Prints the message.
std::ostream& operator<<(std::ostream& out, const Error& error);

/// Thrown by Result::value() on a failed result: asking for a value that is not there is a defect of the caller.
class ErrorException : public std::runtime_error {
 public:
  /// Wraps an error; what() is its message.
  explicit ErrorException(Error error);
  /// Returns the error.
  const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};
/// Throws ErrorException: what value() of a Result does when there is none.
[[noreturn]] void throw_exception_from_error(const Error& error, const boost::source_location&);

/// What may fail at another machine: a value, or the Error that says why there is none.
template <class T = void>
using Result = boost::system::result<T, Error>;

/// A successful Result<void>.
inline Result<> ok() {
  return {};
}

}  // namespace cohive
