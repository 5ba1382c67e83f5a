// cohive-link-emulator: links with delay, jitter, loss and a rate between network namespaces, for kernels without a
// network emulator. A link is a TAP device at each end, and this program carries the frames between them.
//
// One command per line on stdin, one reply per line on stdout: "ok ..." or "error WORDS". It ends when stdin does, and
// the devices end with it. The ends of a link are 0 and 1; a direction is named by the end that sends. Times are in
// microseconds, loss is a fraction, rate in bits per second (0: no limit), queue in bytes that wait for the rate.
//   link NAMESPACE INTERFACE NAMESPACE INTERFACE  ->  ok LINK
//   set LINK END DELAY JITTER LOSS RATE QUEUE     ->  ok
//   count LINK END                                ->  ok CARRIED LOST OVERFLOWN
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr std::size_t kMaxFrame = 2048;      // of an MTU of 1500
constexpr std::size_t kEthernetHeader = 14;  // not counted by the rate, which is one of IP packets
constexpr int kFramesAtOnce = 64;            // read from one device before the others have their turn
constexpr int kDeviceQueue = 10'000;         // frames that wait in the kernel while another process has the core
constexpr std::uint64_t kStdin = ~std::uint64_t{0}, kTimer = kStdin - 1;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int get() const { return value_; }

 private:
  int value_;
};

Descriptor opened(const std::string& path, int flags) {
  Descriptor file(::open(path.c_str(), flags | O_CLOEXEC));
  if (file.get() < 0) fail(path);
  return file;
}

/// The process is in a namespace as long as it lives.
class Visit {
 public:
  explicit Visit(const std::string& name) : home_(opened("/proc/self/ns/net", O_RDONLY)) {
    if (::setns(opened("/run/netns/" + name, O_RDONLY).get(), CLONE_NEWNET) != 0) fail("namespace " + name);
  }
  ~Visit() {
    if (::setns(home_.get(), CLONE_NEWNET) != 0) std::terminate();  // all that follows would be in the wrong place
  }

 private:
  Descriptor home_;
};

/// A TAP device in a namespace; its descriptor works from outside.
Descriptor make_device(const std::string& space, const std::string& interface) {
  if (interface.size() >= IFNAMSIZ) throw std::invalid_argument("interface name too long: " + interface);
  const Visit visit(space);
  Descriptor device = opened("/dev/net/tun", O_RDWR | O_NONBLOCK);
  ifreq request{};
  std::copy(interface.begin(), interface.end(), request.ifr_name);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (::ioctl(device.get(), TUNSETIFF, &request) != 0) fail("device " + interface);
  const Descriptor control(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  request.ifr_qlen = kDeviceQueue;
  if (::ioctl(control.get(), SIOCSIFTXQLEN, &request) != 0) fail("queue of " + interface);
  return device;
}

struct Character {
  nanoseconds delay{0}, jitter{0};
  double loss = 0, rate = 0, queue = 0;
};

struct Frame {
  Clock::time_point due;
  std::vector<char> bytes;
};

/// What one end of a link sends to the other. Frames keep their order.
struct Direction {
  Descriptor device;  // of the end that sends
  Character character;
  std::deque<Frame> flying;
  Clock::time_point free_at{};  // when the last frame has left at the rate
  std::uint64_t carried = 0, lost = 0, overflown = 0;
};

class Links {
 public:
  Links()
      : poll_(::epoll_create1(EPOLL_CLOEXEC)), timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
    watch(STDIN_FILENO, kStdin);
    watch(timer_.get(), kTimer);
  }

  void run() {
    std::array<epoll_event, 32> events;
    for (;;) {
      const int count = ::epoll_wait(poll_.get(), events.data(), events.size(), -1);
      if (count < 0 && errno != EINTR) fail("epoll_wait");
      for (int i = 0; i < count; ++i) {
        const std::uint64_t mark = events[static_cast<std::size_t>(i)].data.u64;
        if (mark == kStdin) {
          if (!serve_commands()) return;
        } else if (mark == kTimer) {
          std::uint64_t expirations = 0;  // unread, it would wake us again and again
          if (::read(timer_.get(), &expirations, sizeof(expirations)) < 0 && errno != EAGAIN) fail("read of the timer");
        } else {
          take(*directions_[mark]);
        }
      }
      deliver();
    }
  }

 private:
  void watch(int descriptor, std::uint64_t mark) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = mark;
    if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) fail("epoll_ctl");
  }

  // ---- Frames

  void take(Direction& direction) {
    for (int i = 0; i < kFramesAtOnce; ++i) {
      const ssize_t size = ::read(direction.device.get(), buffer_.data(), buffer_.size());
      if (size < 0 && errno != EAGAIN && errno != EINTR) return forget(direction);
      if (size <= 0) return;
      accept(direction, {buffer_.data(), static_cast<std::size_t>(size)});
    }
  }

  /// The device is gone, with its namespace or without. Its descriptor would be ready for ever, and wake us each time.
  void forget(const Direction& direction) {
    if (::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, direction.device.get(), nullptr) != 0) fail("epoll_ctl");
  }

  void accept(Direction& direction, std::string_view frame) {
    const Character& link = direction.character;
    if (link.loss > 0 && std::uniform_real_distribution(0.0, 1.0)(random_) < link.loss) {
      ++direction.lost;
      return;
    }
    const auto now = Clock::now();
    auto sent = now;
    if (link.rate > 0) {
      const auto wait = std::max(direction.free_at - now, Clock::duration::zero());
      if (std::chrono::duration<double>(wait).count() * link.rate / 8 > link.queue) {
        ++direction.overflown;
        return;
      }
      const std::chrono::duration<double> takes(static_cast<double>(frame.size() - kEthernetHeader) * 8 / link.rate);
      sent = direction.free_at = now + wait + std::chrono::duration_cast<nanoseconds>(takes);
    }
    auto due = sent + link.delay;
    if (link.jitter.count() > 0)
      due +=
          nanoseconds(std::uniform_int_distribution<std::int64_t>(-link.jitter.count(), link.jitter.count())(random_));
    if (!direction.flying.empty()) due = std::max(due, direction.flying.back().due);
    direction.flying.push_back({due, std::vector<char>(frame.begin(), frame.end())});
  }

  /// Hands over what is due, and sets the timer for what comes next.
  void deliver() {
    const auto now = Clock::now();
    auto next = Clock::time_point::max();
    for (std::size_t i = 0; i < directions_.size(); ++i) {
      auto& direction = *directions_[i];
      const int other_end = directions_[i ^ 1]->device.get();
      for (; !direction.flying.empty() && direction.flying.front().due <= now; direction.flying.pop_front()) {
        const auto& bytes = direction.flying.front().bytes;
        if (::write(other_end, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size())) ++direction.carried;
      }
      if (!direction.flying.empty()) next = std::min(next, direction.flying.front().due);
    }
    if (next != Clock::time_point::max()) set_timer(next);
  }

  void set_timer(Clock::time_point when) {
    const auto since = std::chrono::duration_cast<nanoseconds>(when.time_since_epoch()).count();
    itimerspec spec{};
    spec.it_value = {since / 1'000'000'000, since % 1'000'000'000};
    if (::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr) != 0) fail("timerfd_settime");
  }

  // ---- Commands

  /// False when stdin has ended.
  bool serve_commands() {
    const ssize_t size = ::read(STDIN_FILENO, buffer_.data(), buffer_.size());
    if (size <= 0) return false;
    commands_.append(buffer_.data(), static_cast<std::size_t>(size));
    for (std::size_t end; (end = commands_.find('\n')) != std::string::npos; commands_.erase(0, end + 1)) {
      try {
        std::cout << answer(commands_.substr(0, end)) << std::endl;
      } catch (const std::exception& error) {
        std::cout << "error " << error.what() << std::endl;
      }
    }
    return true;
  }

  std::string answer(const std::string& command) {
    std::istringstream words(command);
    std::string verb;
    words >> verb;
    if (verb == "link") return add_link(words);
    std::size_t link = 0, end = 0;
    if (!(words >> link >> end) || end > 1 || 2 * link + 1 >= directions_.size())
      throw std::invalid_argument("no such link: " + command);
    auto& direction = *directions_[2 * link + end];
    if (verb == "set") return set(direction, words);
    if (verb != "count") throw std::invalid_argument("unknown command: " + command);
    std::ostringstream reply;
    reply << "ok " << direction.carried << ' ' << direction.lost << ' ' << direction.overflown;
    return reply.str();
  }

  std::string add_link(std::istringstream& words) {
    std::array<std::unique_ptr<Direction>, 2> ends;
    for (auto& end : ends) {
      std::string space, interface;
      if (!(words >> space >> interface)) throw std::invalid_argument("link NAMESPACE INTERFACE NAMESPACE INTERFACE");
      end = std::make_unique<Direction>();
      end->device = make_device(space, interface);
    }
    for (auto& end : ends) {
      watch(end->device.get(), directions_.size());
      directions_.push_back(std::move(end));
    }
    return "ok " + std::to_string(directions_.size() / 2 - 1);
  }

  static std::string set(Direction& direction, std::istringstream& words) {
    std::int64_t delay = 0, jitter = 0;
    Character character;
    if (!(words >> delay >> jitter >> character.loss >> character.rate >> character.queue))
      throw std::invalid_argument("set LINK END DELAY JITTER LOSS RATE QUEUE");
    character.delay = std::chrono::microseconds(delay);
    character.jitter = std::chrono::microseconds(jitter);
    direction.character = character;
    return "ok";
  }

  Descriptor poll_, timer_;
  std::vector<std::unique_ptr<Direction>> directions_;  // link n has 2n and 2n + 1
  std::mt19937_64 random_{1};
  std::array<char, kMaxFrame> buffer_{};
  std::string commands_;
};

}  // namespace

int main() {
  // A frame that is late because others compute would be a delay that no one asked for.
  sched_param priority{};
  priority.sched_priority = 1;
  ::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &priority);
  try {
    Links().run();
  } catch (const std::exception& error) {
    std::cerr << "cohive-link-emulator: " << error.what() << '\n';
    return 1;
  }
}
