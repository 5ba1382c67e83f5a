// What is queued on a stream, for the sentences of errors: a device reports a failure of queued work later, and does
// not say of which.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cohive::cuda {

/// One thread at a time.
class WorkLog {
 public:
  /// \param name  that lives as long as the program
  void note(std::string_view name);
  /// All that was noted is done.
  void clear() noexcept { kinds_.clear(); }
  /// Lists what was noted, each kernel or copy once: "to_uniform, copy to the host (3 times)".
  std::string list() const;

 private:
  struct Kind {
    std::string_view name;
    std::size_t times;
  };
  std::vector<Kind> kinds_;  // in the order of their first time; a program has a few dozen
};

}  // namespace cohive::cuda
