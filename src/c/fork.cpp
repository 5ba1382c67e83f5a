#include "fork.hpp"

#include <pthread.h>
#include <unistd.h>

#include "cohive/core/fork.hpp"
#include "cohive/core/log.hpp"
#include "errors.hpp"
#include "events.hpp"

namespace cohive::c {

void follow_forks() {
  static const bool once = [] {
    ::pthread_atfork(nullptr, nullptr, restart_events);  // before the log's, which may have lines to push
    cohive::follow_forks();
    return true;
  }();
  (void)once;
}

Origin::Origin() : generation_(fork_generation()), process_(::getpid()) {
  follow_forks();
}

bool Origin::elsewhere() const noexcept {
  return fork_generation() != generation_;
}

std::int32_t fail_elsewhere(const Origin& origin) noexcept {
  try {
    return fail(COHIVE_FORKED,
                log::format("cohive: this object belongs to process {}; make it after the fork", origin.process()));
  } catch (...) {
    return COHIVE_FORKED;
  }
}

}  // namespace cohive::c
