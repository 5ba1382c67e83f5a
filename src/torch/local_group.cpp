#include "cohive/torch/local_group.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include "cohive/core/log.hpp"

namespace cohive {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kBetweenAttempts = std::chrono::milliseconds(20);
constexpr std::size_t kMostRanks = 1024;
constexpr std::uint32_t kMagic = 0x63686c67;  // "chlg"
constexpr std::size_t kPieceOfSum = 1 << 16;  // values that are received at once

/// The first bytes of a rank.
struct Hello {
  std::uint32_t magic = kMagic;
  std::uint32_t rank = 0, size = 0;
};

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::runtime_error("cohive::LocalGroup: " + what + ": " + std::strerror(error));
}

class Socket {
 public:
  explicit Socket(int fd = -1) noexcept : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const noexcept { return fd_; }

  static Socket open() {
    Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.fd() < 0) fail("cannot open a socket", errno);
    return socket;
  }

  void send(const void* bytes, std::size_t count, std::size_t to_rank) const {
    const auto* at = static_cast<const char*>(bytes);
    while (count > 0) {
      const auto sent = ::send(fd_, at, count, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) fail(log::format("rank {} has gone", to_rank), errno);
      at += sent;
      count -= static_cast<std::size_t>(sent);
    }
  }
  void receive(void* bytes, std::size_t count, std::size_t from_rank) const {
    auto* at = static_cast<char*>(bytes);
    while (count > 0) {
      const auto received = ::recv(fd_, at, count, 0);
      if (received < 0 && errno == EINTR) continue;
      if (received <= 0) fail(log::format("rank {} has gone", from_rank), received == 0 ? ECONNRESET : errno);
      at += received;
      count -= static_cast<std::size_t>(received);
    }
  }

 private:
  int fd_;
};

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path))
    throw std::invalid_argument(log::format("cohive::LocalGroup: the socket's path has 1 to {} characters: '{}'",
                                            sizeof(address.sun_path) - 1, path));
  path.copy(address.sun_path, path.size());
  return address;
}

/// True when the process at the other end is of this user: no other user hands over gradients.
bool same_user(const Socket& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

Socket connect_to_leader(const LocalGroupOptions& options, Clock::time_point deadline) {
  const auto address = address_of(options.socket_path);
  for (;;) {
    auto socket = Socket::open();
    if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      if (!same_user(socket))
        throw std::runtime_error("cohive::LocalGroup: " + options.socket_path + " belongs to another user");
      return socket;
    }
    const int error = errno;
    if (Clock::now() > deadline) fail("rank 0 does not listen at " + options.socket_path, error);
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

Socket listen_at(const LocalGroupOptions& options) {
  const auto address = address_of(options.socket_path);
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  if (const auto other = Socket::open(); ::connect(other.fd(), plain, sizeof address) == 0)
    throw std::runtime_error("cohive::LocalGroup: another rank 0 listens at " + options.socket_path);
  ::unlink(options.socket_path.c_str());  // left by a rank 0 that was killed
  auto socket = Socket::open();
  if (::bind(socket.fd(), plain, sizeof address) != 0 || ::listen(socket.fd(), static_cast<int>(options.size)) != 0)
    fail("cannot listen at " + options.socket_path, errno);
  return socket;
}

/// Waits until there is something to read.
void await_readable(const Socket& socket, Clock::time_point deadline, const std::string& missing) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{socket.fd(), POLLIN, 0};
    const int ready = left > 0 ? ::poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left, 1000))) : 0;
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) fail("cannot wait", errno);
    if (left <= 0) throw std::runtime_error("cohive::LocalGroup: " + missing);
  }
}

std::size_t number(const char* name, std::size_t otherwise) {
  const char* text = std::getenv(name);
  if (!text) return otherwise;
  const std::string_view view(text);
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(view.begin(), view.end(), value);
  if (error != std::errc() || end != view.end())
    throw std::invalid_argument(log::format("{} should be a number, not {}", name, log::quoted(view)));
  return value;
}

void check(const LocalGroupOptions& options) {
  if (options.size < 1 || options.size > kMostRanks || options.rank >= options.size)
    throw std::invalid_argument(
        log::format("cohive::LocalGroup: rank {} of {}: a group has 1 to {} ranks, counted from 0", options.rank,
                    options.size, kMostRanks));
}

}  // namespace

LocalGroupOptions LocalGroupOptions::from_environment() {
  LocalGroupOptions options;
  options.rank = number("LOCAL_RANK", 0);
  options.size = number("LOCAL_WORLD_SIZE", 1);
  check(options);
  const auto text = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
  options.socket_path = text("COHIVE_LOCAL_SOCKET");
  if (!options.socket_path.empty()) return options;
  const std::string folder = text("XDG_RUNTIME_DIR"), port = text("MASTER_PORT");
  options.socket_path = log::format("{}/cohive-{}-{}.socket", folder.empty() ? "/tmp" : folder, ::geteuid(),
                                    port.empty() ? std::to_string(::getppid()) : port);
  return options;
}

struct LocalGroup::Impl {
  explicit Impl(LocalGroupOptions opts) : options(std::move(opts)) {}

  void gather(Clock::time_point deadline);
  void join(Clock::time_point deadline);

  LocalGroupOptions options;
  std::vector<Socket> links;  ///< of rank 0: to rank i at i; of other ranks: to rank 0 alone
  std::vector<float> scratch;
};

void LocalGroup::Impl::gather(Clock::time_point deadline) {
  const auto listener = listen_at(options);
  links.resize(options.size);
  for (std::size_t arrived = 1; arrived < options.size;) {
    const auto missing = log::format("{} of {} ranks have come", arrived, options.size);
    await_readable(listener, deadline, missing);
    Socket link(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (link.fd() < 0 || !same_user(link)) continue;
    await_readable(link, deadline, missing);
    Hello hello;
    hello.magic = 0;
    if (::recv(link.fd(), &hello, sizeof hello, MSG_WAITALL) != sizeof hello || hello.magic != kMagic) continue;
    if (hello.size != options.size || hello.rank == 0 || hello.rank >= options.size || links[hello.rank].fd() >= 0)
      throw std::runtime_error(
          log::format("cohive::LocalGroup: rank {} of {} came to a group of {} that does not miss it", hello.rank,
                      hello.size, options.size));
    links[hello.rank] = std::move(link);
    ++arrived;
  }
  ::unlink(options.socket_path.c_str());
}

void LocalGroup::Impl::join(Clock::time_point deadline) {
  links.push_back(connect_to_leader(options, deadline));
  const Hello hello{kMagic, static_cast<std::uint32_t>(options.rank), static_cast<std::uint32_t>(options.size)};
  links[0].send(&hello, sizeof hello, 0);
}

LocalGroup::LocalGroup(LocalGroupOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  check(impl_->options);
  if (size() == 1) return;
  const auto deadline = Clock::now() + impl_->options.timeout;
  if (leads()) {
    impl_->gather(deadline);
  } else {
    impl_->join(deadline);
  }
}

LocalGroup::~LocalGroup() = default;

std::size_t LocalGroup::rank() const noexcept {
  return impl_->options.rank;
}
std::size_t LocalGroup::size() const noexcept {
  return impl_->options.size;
}

void LocalGroup::sum(float* values, std::size_t count) {
  if (!leads()) return impl_->links[0].send(values, count * sizeof(float), 0);
  auto& scratch = impl_->scratch;
  scratch.resize(std::min(count, kPieceOfSum));
  for (std::size_t rank = 1; rank < size(); ++rank) {
    for (std::size_t done = 0; done < count;) {
      const std::size_t piece = std::min(count - done, kPieceOfSum);
      impl_->links[rank].receive(scratch.data(), piece * sizeof(float), rank);
      for (std::size_t i = 0; i < piece; ++i) values[done + i] += scratch[i];
      done += piece;
    }
  }
}

void LocalGroup::broadcast(void* bytes, std::size_t count) {
  if (!leads()) return impl_->links[0].receive(bytes, count, 0);
  for (std::size_t rank = 1; rank < size(); ++rank) impl_->links[rank].send(bytes, count, rank);
}

}  // namespace cohive
