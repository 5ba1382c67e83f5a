#include "cohive/core/fork.hpp"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "cohive/core/log_output.hpp"

namespace cohive {
namespace {

/// Sockets by descriptor, and by inode: a descriptor that was closed and serves another file is none of ours.
struct Sockets {
  std::mutex mutex;
  std::unordered_map<int, ino_t> inodes;
};

/// Never destroyed: a process may fork while it ends.
Sockets& sockets() {
  static Sockets& all = *new Sockets;
  return all;
}

std::atomic<bool> following{false};
std::atomic<unsigned> generation{0};

void close_in_child() {
  Sockets& all = sockets();
  for (const auto& [descriptor, inode] : all.inodes) {
    struct stat status{};
    if (::fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode) && status.st_ino == inode) ::close(descriptor);
  }
  all.inodes.clear();
  all.mutex.unlock();
  ++generation;
  log::restart_after_fork();
}

}  // namespace

void follow_forks() {
  static const bool once = [] {
    ::pthread_atfork([] { sockets().mutex.lock(); }, [] { sockets().mutex.unlock(); }, close_in_child);
    following = true;
    return true;
  }();
  (void)once;
}

void note_socket(int descriptor) {
  struct stat status{};
  if (!following || ::fstat(descriptor, &status) != 0) return;
  Sockets& all = sockets();
  const std::lock_guard lock(all.mutex);
  all.inodes[descriptor] = status.st_ino;
}

unsigned fork_generation() noexcept {
  return generation;
}

}  // namespace cohive
