#include "cohive/transport/congestion_control.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "cohive/core/errors.hpp"
#include "cohive/core/on_exit.hpp"

namespace cohive::transport {
namespace {

constexpr const char* kPreferred = "bbr";
constexpr std::size_t kMostName = 15;  // TCP_CA_NAME_MAX without the terminating zero

/// Returns 0 where a socket takes the algorithm, else the number of the system's error.
int try_algorithm(const std::string& name) {
  if (name.empty() || name.size() > kMostName) return ENOENT;  // the kernel would cut a longer name
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const auto closed = on_exit([fd] { ::close(fd); });
  const auto size = static_cast<socklen_t>(name.size());
  return ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), size) == 0 ? 0 : errno;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

const std::string& default_congestion_control() {
  static const std::string name = [] {
    char text[kMostName + 1] = {};
    socklen_t size = kMostName;
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return std::string("cubic");
    const bool known = ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, text, &size) == 0;
    ::close(fd);
    return std::string(known ? text : "cubic");
  }();
  return name;
}

std::vector<std::string> available_congestion_controls() {
  std::vector<std::string> names;
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  for (std::string name; file >> name;) names.push_back(name);
  return names;
}

Result<std::string> choose_congestion_control(const std::string& wanted) {
  if (wanted == kKernelCongestionControl) return std::string();
  if (wanted.empty()) return std::string(try_algorithm(kPreferred) == 0 ? kPreferred : "");
  const int number = try_algorithm(wanted);
  if (number == 0) return wanted;
  if (number == EPERM)
    return Error(cohive::Errc::invalid_argument,
                 "the kernel allows the congestion control \"" + wanted + "\" to privileged processes only");
  const auto names = available_congestion_controls();
  return Error(cohive::Errc::invalid_argument, "the kernel has no congestion control \"" + wanted + "\"" +
                                                   (names.empty() ? "" : ", only " + listed(names)));
}

}  // namespace cohive::transport
