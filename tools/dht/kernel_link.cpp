#include "dht/kernel_link.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>

#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/transport/congestion_control.hpp"
#include "dht/milliseconds.hpp"

namespace cohive::tools {
namespace {

constexpr double kWanted = 1e9;     // bits per second that one connection should be able to carry
constexpr double kAmple = 10e9;     // no figure is worth more
constexpr double kHoldsData = 0.5;  // of a buffer; the kernel's own records fill the rest
constexpr std::uint64_t kMostBuffer = 1 << 28;

/// The interface that has an address.
std::string interface_of(const std::string& host) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const auto freed = on_exit([list] { ::freeifaddrs(list); });
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    if (!one->ifa_addr) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (one->ifa_addr->sa_family == AF_INET)
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
    if (one->ifa_addr->sa_family == AF_INET6)
      ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr, text, sizeof text);
    if (host == text) return one->ifa_name;
  }
  return {};
}

/// The queueing discipline of an interface, as rtnetlink(7) tells it.
std::string qdisc_of(const std::string& interface) {
  struct {
    nlmsghdr header;
    ifinfomsg link;
  } request{};
  request.header = {.nlmsg_len = sizeof request, .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST};
  request.link.ifi_family = AF_UNSPEC;
  request.link.ifi_index = static_cast<int>(::if_nametoindex(interface.c_str()));
  if (request.link.ifi_index == 0) return {};
  const int fd = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return {};
  const auto closed = on_exit([fd] { ::close(fd); });
  alignas(nlmsghdr) std::array<char, 16 * 1024> answer{};
  if (::send(fd, &request, sizeof request, 0) < 0) return {};
  auto left = static_cast<int>(::recv(fd, answer.data(), answer.size(), 0));
  const auto* message = reinterpret_cast<const nlmsghdr*>(answer.data());
  if (left <= 0 || !NLMSG_OK(message, static_cast<unsigned>(left)) || message->nlmsg_type != RTM_NEWLINK) return {};
  const auto* attribute = IFLA_RTA(NLMSG_DATA(message));
  for (int rest = static_cast<int>(IFLA_PAYLOAD(message)); RTA_OK(attribute, rest);
       attribute = RTA_NEXT(attribute, rest)) {
    if (attribute->rta_type != IFLA_QDISC) continue;
    const auto* text = static_cast<const char*>(RTA_DATA(attribute));
    return {text, ::strnlen(text, RTA_PAYLOAD(attribute))};
  }
  return {};
}

/// The last of the three numbers of tcp_wmem or tcp_rmem.
std::uint64_t most_of(const char* name) {
  std::ifstream file(std::string("/proc/sys/net/ipv4/") + name);
  std::uint64_t least = 0, usual = 0, most = 0;
  return file >> least >> usual >> most ? most : 0;
}

double megabits(std::uint64_t buffer, Duration round_trip) {
  return kHoldsData * static_cast<double>(buffer) * 8 / to_seconds(round_trip) / 1e6;
}

double mebibytes(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The buffer that carries what is wanted at this round trip, a power of two.
std::uint64_t wanted_buffer(Duration round_trip) {
  const auto bytes = static_cast<std::uint64_t>(kWanted / 8 * to_seconds(round_trip) / kHoldsData);
  return std::min(kMostBuffer, std::bit_ceil(std::max<std::uint64_t>(bytes, 1 << 20)));
}

}  // namespace

KernelLink read_kernel_link(const Multiaddr& local) {
  KernelLink link;
  link.otherwise = transport::default_congestion_control();
  link.between_cohive = transport::choose_congestion_control("").value();
  if (link.between_cohive.empty()) link.between_cohive = link.otherwise;
  link.available = transport::available_congestion_controls();
  if (const auto host = local.value(local.first_code())) link.interface = interface_of(*host);
  if (!link.interface.empty()) link.qdisc = qdisc_of(link.interface);
  link.most_send = most_of("tcp_wmem");
  link.most_receive = most_of("tcp_rmem");
  return link;
}

Finding examine_kernel_link(const KernelLink& link, Duration round_trip) {
  Finding finding{.step = "link", .text = "connections to cohive peers send by " + link.between_cohive};
  if (link.otherwise != link.between_cohive) finding.text += ", others by " + link.otherwise;
  if (!link.available.empty()) finding.text += " (the kernel has " + listed(link.available) + ")";
  if (!link.qdisc.empty()) finding.text += "; " + link.interface + " queues by " + link.qdisc;
  const bool known = link.most_send > 0 && link.most_receive > 0 && round_trip > Duration::zero();
  const double send = known ? megabits(link.most_send, round_trip) : 0;
  const double receive = known ? megabits(link.most_receive, round_trip) : 0;
  const std::string buffers = log::format("tcp_wmem of {:.1f} and tcp_rmem of {:.1f} MiB", mebibytes(link.most_send),
                                          mebibytes(link.most_receive));
  if (known && std::min(send, receive) >= kAmple / 1e6) {
    finding.text += log::format("; {} are ample at {:.1f} ms", buffers, milliseconds(round_trip));
  } else if (known) {
    finding.text +=
        log::format("; {} let one connection send about {:.0f} and receive about {:.0f} Mbit/s at {:.1f} ms", buffers,
                    send, receive, milliseconds(round_trip));
  }
  const auto add_advice = [&finding](const std::string& text) {
    finding.advice += (finding.advice.empty() ? "" : "; ") + text;
  };
  if (known && std::min(send, receive) < kWanted / 1e6) {
    const auto most = wanted_buffer(round_trip);
    if (most > std::min(link.most_send, link.most_receive))
      add_advice(
          log::format("for links that carry more, as root: sysctl -w net.ipv4.tcp_wmem=\"4096 16384 {}\" and "
                      "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 {}\"",
                      std::max(most, link.most_send), std::max(most, link.most_receive)));
  }
  if (link.between_cohive != "bbr")
    add_advice("where packets get lost on the way, BBR keeps the link full; as root: modprobe tcp_bbr");
  finding.details = {{"congestion_control", link.between_cohive},
                     {"default_congestion_control", link.otherwise},
                     {"available_congestion_controls", link.available},
                     {"interface", link.interface},
                     {"qdisc", link.qdisc},
                     {"tcp_wmem", link.most_send},
                     {"tcp_rmem", link.most_receive},
                     {"send_megabits", send},
                     {"receive_megabits", receive}};
  return finding;
}

}  // namespace cohive::tools
