#include "common/signals.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include "cohive/core/asio.hpp"

namespace cohive::tools {
namespace {

constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU};
constexpr int kGraceMilliseconds = 1000;

// Lock-free, constant-initialised: they are used in a handler, and before constructors have run.
std::atomic<int> first_signal{0};
std::atomic<int> stop_event{-1};   // readable from the first signal on
std::atomic<bool> awaited{false};  // by a loop, which closes what is open
static_assert(std::atomic<int>::is_always_lock_free);

void handle(int signal, void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

/// The second Ctrl+C waits for nothing: a node dies of it, and a trainer exits as a shell would say it.
void end_at_once() {
  constexpr int kInterrupted = 128 + SIGINT;
  if (!awaited) ::_exit(kInterrupted);
  handle(SIGINT, SIG_DFL);
  ::raise(SIGINT);
}

void request_stop(int signal) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, signal)) {
    if (signal == SIGINT) end_at_once();
    return;
  }
  const int before = errno;
  constexpr std::uint64_t kOne = 1;
  (void)!::write(stop_event, &kOne, sizeof kOne);
  errno = before;
}

bool is_ignored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void catch_signals() noexcept {
  if (stop_event >= 0) return;
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor)
    if (::fcntl(descriptor, F_GETFD) < 0) (void)!::open("/dev/null", O_RDWR);  // the lowest free number
  stop_event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (const int signal : kStopSignals)
    if (signal != SIGHUP || !is_ignored(SIGHUP)) handle(signal, request_stop);
  // SIGUSR1 asks for diagnostics of a program that gives them; it must not end one that does not yet.
  for (const int signal : {SIGPIPE, SIGXFSZ, SIGUSR1}) handle(signal, SIG_IGN);
}

void let_signals_end_program() noexcept {
  for (const int signal : kStopSignals)
    if (!is_ignored(signal)) handle(signal, SIG_DFL);
  if (const int signal = first_signal) ::raise(signal);
}

int stop_signal() noexcept {
  return first_signal;
}

Task<int> wait_for_stop(Runtime& runtime) {
  using boost::asio::posix::stream_descriptor;
  awaited = true;
  stream_descriptor event(runtime.io_context(), ::fcntl(stop_event, F_DUPFD_CLOEXEC, 0));
  while (stop_signal() == 0) (co_await event.async_wait(stream_descriptor::wait_read, use_task)).value();
  co_return stop_signal();
}

bool wait_until_ready(int descriptor, short events) {
  pollfd waits[] = {{descriptor, events, 0}, {stop_event, POLLIN, 0}};
  while (::poll(waits, 2, -1) < 0 && errno == EINTR) {
  }
  if (waits[0].revents != 0) return true;
  return ::poll(waits, 1, kGraceMilliseconds) > 0;
}

// The constructors of LibTorch take longer than many a person waits before the first Ctrl+C. What stands in this
// section comes before them; sanitizers are not ready by then, and static programs of some C libraries leave it out.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define COHIVE_SANITIZED
#endif
#endif
#if !defined(COHIVE_SANITIZED) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {
void before_constructors(int, char**, char**) {
  catch_signals();
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_all)(int, char**, char**) = before_constructors;
}  // namespace
#endif

}  // namespace cohive::tools
