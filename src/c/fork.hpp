// Handles that outlive a fork(): the child must not touch what they lead to.
#pragma once

#include <cstdint>
#include <memory>

namespace cohive::c {

/// cohive::follow_forks(), and the events of a child begin anew.
void follow_forks();

/// The process of a handle.
class Origin {
 public:
  Origin();
  /// Whether this is another process than the one that made the handle.
  bool elsewhere() const noexcept;
  /// The id of the process that made it.
  std::int64_t process() const noexcept { return process_; }

 private:
  unsigned generation_;
  std::int64_t process_;
};

/// COHIVE_FORKED with its sentence.
std::int32_t fail_elsewhere(const Origin& origin) noexcept;

}  // namespace cohive::c
