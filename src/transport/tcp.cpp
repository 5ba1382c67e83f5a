// TCP over Boost.Asio. System calls are tried at once and Asio is asked to wait only when they would block.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "cohive/core/combine.hpp"
#include "cohive/core/fork.hpp"
#include "cohive/transport/congestion_control.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/network.hpp"
#include "flight_limit.hpp"

namespace cohive::transport {
namespace {

namespace asio = boost::asio;
using Descriptor = asio::posix::basic_stream_descriptor<asio::io_context::executor_type>;

constexpr int kBacklog = 1024;
// Of the answer to a peer that begins to connect: a connection that stays half-open is gone after three seconds, not a
// minute. Until then no dial from the listening port reaches that peer, as a hole to be punched needs it.
constexpr int kAnswersRepeated = 1;
constexpr Duration kListPeriod = 1s;  // of the interfaces, for our addresses
constexpr std::size_t kMaxGather = 64;
constexpr std::size_t kLeastWrite = 8 * 1024;  // where there is room at all
constexpr Duration kOutOfDescriptors = 100ms;
constexpr int kUnsent = 64 * 1024;
constexpr std::size_t kOpenFiles = 64 * 1024;  // at most
constexpr std::size_t kOtherFiles = 64;        // files of the program, metrics being read, names being resolved

/// Waits for a descriptor. The handler shares a state whose waiter is cleared when the awaiting frame is destroyed.
class Readiness : public Waiter {
 public:
  Readiness(Runtime& runtime, Descriptor& descriptor, Descriptor::wait_type type)
      : Waiter(runtime, type == Descriptor::wait_read ? "socket to read" : "socket to write"),
        descriptor_(descriptor),
        type_(type),
        state_(std::make_shared<State>()) {}
  ~Readiness() { state_->waiter = nullptr; }
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> handle) {
    suspend(handle);
    state_->waiter = this;
    descriptor_.async_wait(type_, [state = state_](boost::system::error_code error) {
      state->error = error;
      if (state->waiter) state->waiter->wake();
    });
  }
  bool await_resume() const noexcept { return !state_->error; }

 private:
  struct State {
    Waiter* waiter = nullptr;
    boost::system::error_code error;
  };
  Descriptor& descriptor_;
  Descriptor::wait_type type_;
  std::shared_ptr<State> state_;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

std::optional<SocketAddress> socket_address(const Multiaddr& address) {
  const auto endpoint = address.tcp_endpoint();
  if (!endpoint) return std::nullopt;
  SocketAddress result;
  if (endpoint->host_code == Multiaddr::ip4) {
    auto* in = reinterpret_cast<sockaddr_in*>(&result.storage);
    in->sin_family = AF_INET;
    in->sin_port = htons(endpoint->port);
    inet_pton(AF_INET, endpoint->host.c_str(), &in->sin_addr);
    result.size = sizeof(sockaddr_in);
  } else if (endpoint->host_code == Multiaddr::ip6) {
    auto* in = reinterpret_cast<sockaddr_in6*>(&result.storage);
    in->sin6_family = AF_INET6;
    in->sin6_port = htons(endpoint->port);
    inet_pton(AF_INET6, endpoint->host.c_str(), &in->sin6_addr);
    result.size = sizeof(sockaddr_in6);
  } else {
    return std::nullopt;
  }
  return result;
}

std::string host_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else {
    const auto& ip = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&ip)) {
      inet_ntop(AF_INET, ip.s6_addr + 12, text, sizeof text);
    } else {
      inet_ntop(AF_INET6, &ip, text, sizeof text);
    }
  }
  return text;
}

Multiaddr to_multiaddr(const SocketAddress& address) {
  const auto* any = reinterpret_cast<const sockaddr*>(&address.storage);
  const auto port = any->sa_family == AF_INET ? reinterpret_cast<const sockaddr_in*>(any)->sin_port
                                              : reinterpret_cast<const sockaddr_in6*>(any)->sin6_port;
  return Multiaddr::from_ip_tcp(host_text(any), ntohs(port)).value();
}

SocketAddress bound_to(int fd) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (::getsockname(fd, address.get(), &address.size) != 0) throw std::runtime_error("a socket without a name");
  return address;
}

// BBR, the default of some systems, sends by a timer, which no link within a machine needs, and a socket that began
// with it keeps the timer under any other algorithm. All begin without; sockets to other machines take the default.

void set_congestion_control(int fd, std::string_view name) {
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size()));
}

/// Of a socket that will connect or listen.
void begin_unpaced(int fd) {
  set_congestion_control(fd, "reno");
}

void tune(int fd, bool same_machine) {
  const int on = 1;
  if (!same_machine) set_congestion_control(fd, default_congestion_control());
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // Bytes the network is not ready for wait with us, where control frames and other streams may go first.
  setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsent, sizeof kUnsent);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

std::error_code code_of_dial(int number) {
  switch (number) {
    case ECONNREFUSED:
      return Errc::refused;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case EADDRNOTAVAIL:  // this machine has no address of that kind to send from
      return Errc::unreachable;
    case ETIMEDOUT:
      return cohive::Errc::timeout;
    default:
      return Errc::dial_failed;
  }
}

Error dial_error(const Multiaddr& address, int number) {
  return system_error(code_of_dial(number), number, address.text());
}

class TcpConnection final : public RawConnection {
 public:
  TcpConnection(Runtime& runtime, Descriptor descriptor, Multiaddr remote)
      : runtime_(runtime),
        descriptor_(std::move(descriptor)),
        remote_(std::move(remote)),
        local_(to_multiaddr(bound_to(descriptor_.native_handle()))),
        same_machine_(local_.tcp_endpoint()->host == remote_.tcp_endpoint()->host) {
    tune(descriptor_.native_handle(), same_machine_);
  }

  Task<Result<std::size_t>> read_some(MutableBytes into) override {
    for (;;) {
      if (!descriptor_.is_open()) co_return Error(cohive::Errc::closed, remote_.text());
      const ssize_t count = ::recv(descriptor_.native_handle(), into.data(), into.size(), MSG_DONTWAIT);
      if (count >= 0) co_return static_cast<std::size_t>(count);
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) co_return failure();
      co_await Readiness(runtime_, descriptor_, Descriptor::wait_read);
    }
  }

  Task<void> wait_readable() override {
    if (descriptor_.is_open()) co_await Readiness(runtime_, descriptor_, Descriptor::wait_read);
  }

  Task<Result<>> write_all(std::span<const ByteView> buffers) override {
    std::vector<iovec> pending;
    pending.reserve(buffers.size());
    for (ByteView buffer : buffers)
      if (!buffer.empty()) pending.push_back({const_cast<std::uint8_t*>(buffer.data()), buffer.size()});
    std::size_t first = 0;
    while (first < pending.size()) {
      const std::size_t room = co_await wait_for_room();
      if (!descriptor_.is_open()) co_return Error(cohive::Errc::closed, remote_.text());
      const ssize_t count = send_some(std::span(pending).subspan(first), room);
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) co_return failure();
        co_await Readiness(runtime_, descriptor_, Descriptor::wait_write);
        continue;
      }
      for (auto left = static_cast<std::size_t>(count); left > 0;) {
        iovec& part = pending[first];
        const std::size_t taken = std::min(left, part.iov_len);
        part.iov_base = static_cast<char*>(part.iov_base) + taken;
        part.iov_len -= taken;
        left -= taken;
        if (part.iov_len == 0) ++first;
      }
    }
    co_return ok();
  }

  void end_writing() noexcept override {
    if (descriptor_.is_open()) ::shutdown(descriptor_.native_handle(), SHUT_WR);
  }
  void close() noexcept override {
    boost::system::error_code ignored;
    if (descriptor_.is_open()) descriptor_.close(ignored);
  }
  const Multiaddr& local_address() const override { return local_; }
  const Multiaddr& remote_address() const override { return remote_; }
  /// Bytes that the kernel holds until the peer has acknowledged them.
  std::size_t undelivered() const override {
    int bytes = 0;
    auto& descriptor = const_cast<Descriptor&>(descriptor_);
    if (!descriptor.is_open() || ::ioctl(descriptor.native_handle(), TIOCOUTQ, &bytes) != 0) return 0;
    return static_cast<std::size_t>(std::max(bytes, 0));
  }
  PathState path() const override {
    auto& descriptor = const_cast<Descriptor&>(descriptor_);
    return descriptor.is_open() ? tcp_progress(descriptor.native_handle()).path : PathState{};
  }
  void set_congestion_control(const std::string& name) noexcept override {
    if (same_machine_ || !descriptor_.is_open()) return;
    transport::set_congestion_control(descriptor_.native_handle(), name);
  }

 private:
  /// Sends as much as the socket takes at once, `room` bytes at most.
  ssize_t send_some(std::span<const iovec> buffers, std::size_t room) {
    std::array<iovec, kMaxGather> fitting;
    std::size_t count = 0;
    for (; count < std::min(buffers.size(), kMaxGather) && room > 0; ++count) {
      fitting[count] = {buffers[count].iov_base, std::min(buffers[count].iov_len, room)};
      room -= fitting[count].iov_len;
    }
    msghdr message{};
    message.msg_iov = fitting.data();
    message.msg_iovlen = count;
    return ::sendmsg(descriptor_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  /// Waits while more is on its way than the path holds. Returns how many bytes there is room for.
  Task<std::size_t> wait_for_room() {
    while (!same_machine_ && descriptor_.is_open()) {
      const std::size_t in_flight = undelivered();
      const TcpProgress progress = tcp_progress(descriptor_.native_handle());
      if (in_flight < FlightLimit::kFew) {
        flight_.has_room(runtime_.now(), progress.path);
      } else {
        flight_.observe(runtime_.now(), progress, in_flight);
      }
      pace();
      const Duration pause = flight_.pause(in_flight);
      const std::uint64_t allowed = flight_.bytes();
      if (pause == Duration::zero()) co_return std::max(kLeastWrite, allowed - std::min(allowed, in_flight));
      co_await runtime_.sleep_for(pause);
    }
    co_return std::numeric_limits<std::size_t>::max();
  }
  void pace() {
    if (const auto rate = pace_.change(flight_.rate()))
      setsockopt(descriptor_.native_handle(), SOL_SOCKET, SO_MAX_PACING_RATE, &*rate, sizeof *rate);
  }
  Error failure() const {
    const auto code = errno == ECONNRESET || errno == EPIPE ? cohive::Errc::closed : cohive::Errc::io;
    return system_error(code, errno, remote_.text());
  }
  Runtime& runtime_;
  Descriptor descriptor_;
  Multiaddr remote_;
  Multiaddr local_;
  const bool same_machine_;
  FlightLimit flight_;
  SocketPace pace_;
};

class TcpListener final : public Listener {
 public:
  TcpListener(Runtime& runtime, Descriptor descriptor)
      : runtime_(runtime),
        descriptor_(std::move(descriptor)),
        address_(to_multiaddr(bound_to(descriptor_.native_handle()))) {}
  ~TcpListener() override { close(); }

  Task<Result<std::unique_ptr<RawConnection>>> accept() override {
    for (;;) {
      if (!descriptor_.is_open()) co_return Error(cohive::Errc::closed, address_.text());
      SocketAddress remote;
      remote.size = sizeof remote.storage;
      const int fd = ::accept4(descriptor_.native_handle(), remote.get(), &remote.size, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) {
        note_socket(fd);
        auto connection = std::make_unique<TcpConnection>(
            runtime_, Descriptor(runtime_.io_context().get_executor(), fd), to_multiaddr(remote));
        co_await runtime_.yield();  // a flood of connections does not starve other tasks
        co_return std::unique_ptr<RawConnection>(std::move(connection));
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        co_await Readiness(runtime_, descriptor_, Descriptor::wait_read);
      } else if (errno != ECONNABORTED && errno != EINTR) {
        co_await runtime_.sleep_for(kOutOfDescriptors);  // most often too many open files: connections will close
      }
    }
  }
  const Multiaddr& address() const override { return address_; }

  /// The kernel is asked once a second at most: peers ask for our addresses more often.
  std::vector<Multiaddr> dialable_addresses() const override {
    if (!address_.is_unspecified()) return {address_};
    const TimePoint now = runtime_.now();
    if (listed_ == TimePoint::min() || now - listed_ >= kListPeriod) {
      interfaces_ = list_interfaces();
      listed_ = now;
    }
    return interfaces_;
  }
  void close() noexcept override {
    boost::system::error_code ignored;
    if (descriptor_.is_open()) descriptor_.close(ignored);
  }

 private:
  std::vector<Multiaddr> list_interfaces() const {
    const auto endpoint = address_.tcp_endpoint();
    const int family = endpoint->host_code == Multiaddr::ip4 ? AF_INET : AF_INET6;
    std::vector<Multiaddr> others, loopback;
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return {};
    for (const ifaddrs* one = list; one; one = one->ifa_next) {
      if (!one->ifa_addr || one->ifa_addr->sa_family != family || !(one->ifa_flags & IFF_UP)) continue;
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr))
        continue;
      auto address = Multiaddr::from_ip_tcp(host_text(one->ifa_addr), endpoint->port);
      if (address) (one->ifa_flags & IFF_LOOPBACK ? loopback : others).push_back(std::move(*address));
    }
    ::freeifaddrs(list);
    others.insert(others.end(), loopback.begin(), loopback.end());
    return others;
  }

  Runtime& runtime_;
  Descriptor descriptor_;
  Multiaddr address_;
  mutable std::vector<Multiaddr> interfaces_;  ///< as they were then
  mutable TimePoint listed_ = TimePoint::min();
};

/// How many files this process may have open, after asking for as many as connections can ever need.
std::size_t open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kOpenFiles;
  const rlimit wanted{std::min<rlim_t>(limit.rlim_max, kOpenFiles), limit.rlim_max};
  if (wanted.rlim_cur > limit.rlim_cur && ::setrlimit(RLIMIT_NOFILE, &wanted) == 0) limit = wanted;
  return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur, kOpenFiles));
}

class TcpNetwork final : public Network {
 public:
  explicit TcpNetwork(Runtime& runtime) : runtime_(runtime), open_files_(open_files()) {}
  Runtime& runtime() override { return runtime_; }
  std::size_t max_connections() const override { return open_files_ - std::min(kOtherFiles, open_files_ / 2); }

  Result<std::unique_ptr<Listener>> listen(const Multiaddr& address) override {
    auto target = socket_address(address);
    if (!target) return Error(Errc::address_unsupported, address.text());
    const int fd = ::socket(target->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return listen_error(address, errno);
    note_socket(fd);
    Descriptor descriptor(runtime_.io_context().get_executor(), fd);
    const int on = 1;
    begin_unpaced(fd);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (target->storage.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (::bind(fd, target->get(), target->size) != 0 || ::listen(fd, kBacklog) != 0)
      return listen_error(address, errno);
    // For dials from this port. Set before bind() it would let another process of this user take the same port without
    // an error.
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &kAnswersRepeated, sizeof kAnswersRepeated);
    return std::unique_ptr<Listener>(std::make_unique<TcpListener>(runtime_, std::move(descriptor)));
  }

  using Network::dial;
  Task<Result<std::unique_ptr<RawConnection>>> dial(Multiaddr address, std::optional<Multiaddr> from,
                                                    Deadline deadline) override {
    address = address.without_peer();
    auto target = socket_address(address);
    if (!target) co_return Error(Errc::address_unsupported, address.text());
    auto source = from ? socket_address(*from) : std::nullopt;
    for (;;) {
      auto connection = co_await within(runtime_, deadline, connect(address, *target, source), "connecting");
      if (connection) co_return connection;
      // The pair of ports may be taken by a connection that still lingers: any port is better than none.
      if (!deadline.passed(runtime_.now()) && std::exchange(source, std::nullopt)) continue;
      if (connection.error() == cohive::Errc::timeout && !connection.error().system())
        co_return connection.error().with_context(address.text());
      co_return connection;
    }
  }

 private:
  /// A kind of address that the system lacks is another matter than an address that cannot be had.
  static Error listen_error(const Multiaddr& address, int number) {
    if (number == EADDRINUSE) return Error(Errc::address_in_use, address.text());
    const bool lacking = number == EAFNOSUPPORT || (number == EADDRNOTAVAIL && address.is_unspecified());
    if (lacking) return system_error(Errc::address_unsupported, number, address.text());
    return system_error(cohive::Errc::io, number, "cannot listen on " + address.text());
  }

  Task<Result<std::unique_ptr<RawConnection>>> connect(Multiaddr address, SocketAddress target,
                                                       std::optional<SocketAddress> source) {
    const int fd = ::socket(target.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) co_return dial_error(address, errno);
    note_socket(fd);
    Descriptor descriptor(runtime_.io_context().get_executor(), fd);
    begin_unpaced(fd);
    if (source) {
      const int on = 1;
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
      if (::bind(fd, source->get(), source->size) != 0) co_return dial_error(address, errno);
    }
    if (::connect(fd, target.get(), target.size) != 0) {
      if (errno != EINPROGRESS) co_return dial_error(address, errno);
      co_await Readiness(runtime_, descriptor, Descriptor::wait_write);
      int problem = 0;
      socklen_t size = sizeof problem;
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &size);
      if (problem != 0) co_return dial_error(address, problem);
    }
    auto connection = std::make_unique<TcpConnection>(runtime_, std::move(descriptor), std::move(address));
    // The system may pick the very port we dial, on this machine, if no program listens there.
    if (connection->local_address() == connection->remote_address())
      co_return dial_error(connection->remote_address(), ECONNREFUSED);
    co_return std::unique_ptr<RawConnection>(std::move(connection));
  }

  Runtime& runtime_;
  const std::size_t open_files_;
};

}  // namespace

std::unique_ptr<Network> make_tcp_network(Runtime& runtime) {
  return std::make_unique<TcpNetwork>(runtime);
}

}  // namespace cohive::transport
