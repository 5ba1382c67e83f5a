#include "torch/local_meeting.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "cohive/core/log.hpp"

namespace cohive::libtorch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Group = c10::intrusive_ptr<c10d::Store>;

constexpr auto kBetweenAttempts = milliseconds(20);
constexpr auto kAttempt = milliseconds(2000);  // at a store that may be that of a rank 0 which was killed
constexpr auto kLeast = milliseconds(1);       // 0 means no timeout to c10d

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("cohive::LocalGroup: " + what);
}
[[noreturn]] void fail(const std::string& what, int error) {
  fail(what + ": " + std::strerror(error));
}

milliseconds left_until(Clock::time_point deadline) {
  return std::max(kLeast, std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
}

std::string key_of(std::size_t rank) {
  return log::format("rank {}", rank);
}

struct Descriptor {
  explicit Descriptor(int number) : fd(number) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  int release() { return std::exchange(fd, -1); }
  int fd;
};

/// Where the ranks meet: a port of the loopback, and what begins the keys of this group there.
struct MeetingPoint {
  std::uint16_t port = 0;
  std::string word;
};

Group join(const MeetingPoint& place, c10d::TCPStoreOptions how) {
  how.port = place.port;
  how.waitWorkers = false;
  how.useLibUV = false;  // which a LibTorch may be built without
  return c10::make_intrusive<c10d::PrefixStore>(place.word, c10::make_intrusive<c10d::TCPStore>(kLoopback, how));
}

std::string random_word() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

/// TCPStore itself would listen to other machines, too.
std::pair<Group, MeetingPoint> serve(milliseconds timeout) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (socket.fd < 0 || ::bind(socket.fd, plain, size) != 0 || ::listen(socket.fd, SOMAXCONN) != 0 ||
      ::getsockname(socket.fd, plain, &size) != 0)
    fail("cannot listen on the loopback", errno);
  const MeetingPoint place{ntohs(address.sin_port), random_word()};
  c10d::TCPStoreOptions how;
  how.isServer = true;
  how.masterListenFd = socket.release();
  how.timeout = timeout;
  return {join(place, how), place};
}

void write_file(const std::string& path, const MeetingPoint& place) {
  const auto draft = log::format("{}.{}", path, ::getpid());
  ::unlink(draft.c_str());
  const Descriptor file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const auto text = log::format("{} {}\n", place.port, place.word);
  if (file.fd < 0 || ::write(file.fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::rename(draft.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(draft.c_str());
    fail("cannot write " + path, error);
  }
}

/// Nothing where there is no such file. No other user says where gradients go.
std::optional<MeetingPoint> read_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) return std::nullopt;
  struct stat status{};
  if (::fstat(file.fd, &status) != 0 || status.st_uid != ::geteuid()) fail(path + " belongs to another user");
  std::string text(128, '\0');
  const auto size = ::read(file.fd, text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  MeetingPoint place;
  std::istringstream words(text);
  return words >> place.port >> place.word ? std::optional(place) : std::nullopt;
}

Group gather(const LocalGroupOptions& options, Clock::time_point deadline) {
  auto [store, place] = serve(left_until(deadline));
  store->set("size", std::to_string(options.size));
  write_file(options.meeting_path, place);
  for (std::size_t rank = 1; rank < options.size; ++rank) {
    try {
      store->wait({key_of(rank)}, left_until(deadline));
    } catch (const std::exception&) {
      ::unlink(options.meeting_path.c_str());
      std::size_t come = 1;
      for (std::size_t other = 1; other < options.size; ++other) come += store->check({key_of(other)}) ? 1 : 0;
      fail(log::format("{} of {} ranks have come", come, options.size));
    }
  }
  ::unlink(options.meeting_path.c_str());
  store->set("all", "");
  return store;
}

/// The store that the file leads to. A file that a rank 0 has left which was killed leads to none.
Group find(const LocalGroupOptions& options, Clock::time_point deadline) {
  do {
    try {
      if (const auto place = read_file(options.meeting_path)) {
        c10d::TCPStoreOptions how;
        how.timeout = std::min(kAttempt, left_until(deadline));
        auto store = join(*place, how);
        store->wait({"size"}, how.timeout);
        return store;
      }
    } catch (const c10::Error&) {
    }
    std::this_thread::sleep_for(kBetweenAttempts);
  } while (Clock::now() < deadline);
  fail("rank 0 does not say in " + options.meeting_path + " where it is");
}

Group arrive(const LocalGroupOptions& options, Clock::time_point deadline) {
  auto store = find(options, deadline);
  const bool fits = store->get_to_str("size") == std::to_string(options.size);
  if (!fits || store->add(key_of(options.rank), 1) != 1)
    fail(log::format("rank {} of {} came to a group that does not miss it", options.rank, options.size));
  try {
    store->wait({"all"}, left_until(deadline));
  } catch (const std::exception&) {
    fail("not all ranks have come");
  }
  return store;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> meet(const LocalGroupOptions& options) {
  if (options.meeting_path.empty())
    throw std::invalid_argument("cohive::LocalGroup: ranks meet at a file: none is given");
  const auto deadline = Clock::now() + options.timeout;
  return options.rank == 0 ? gather(options, deadline) : arrive(options, deadline);
}

}  // namespace cohive::libtorch
