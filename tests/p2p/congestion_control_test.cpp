// By what algorithm of the kernel connections to cohive peers and to others send, on real sockets.
#include "cohive/transport/congestion_control.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "cohive/core/errors.hpp"
#include "cohive/p2p/host.hpp"

namespace cohive::p2p {
namespace {

constexpr int kMostFiles = 256;  // of this process, to be looked through

std::uint16_t port_of(const sockaddr_in& address) {
  return ntohs(address.sin_port);
}

/// Returns the algorithm of this process's socket between the two ports.
std::string algorithm_between(std::uint16_t local, std::uint16_t remote) {
  for (int fd = 0; fd < kMostFiles; ++fd) {
    sockaddr_in here{}, there{};
    socklen_t size = sizeof here, other_size = sizeof there;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &size) != 0 || here.sin_family != AF_INET) continue;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &other_size) != 0) continue;
    if (port_of(here) != local || port_of(there) != remote) continue;
    char name[16] = {};
    socklen_t length = sizeof name - 1;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0) return name;
  }
  return "no such socket";
}

struct CongestionControl : testing::Test {
  std::unique_ptr<Runtime> runtime = make_runtime({.pool_threads = 1});
  std::unique_ptr<transport::Network> network = transport::make_tcp_network(*runtime);

  std::unique_ptr<Host> host(std::uint8_t number, std::string ip, HostOptions options) {
    options.listen = {Multiaddr::from_ip_tcp(ip, 0).value()};
    return std::make_unique<Host>(*network, KeyPair::ed25519_from_seed(Bytes(32, number)), std::move(options));
  }
  /// By what a host with this option sends to a peer at another address that says that it is `agent`.
  std::string algorithm(std::string option, std::string agent) {
    auto alice = host(1, "127.0.0.1", {.congestion_control = std::move(option)}),
         bob = host(2, "127.0.0.2", {.agent = agent});
    alice->start().value();
    bob->start().value();
    EXPECT_TRUE(runtime->run(alice->connect(bob->visible_addresses().front(), runtime->after(10s))));
    runtime->run([](Host& host, PeerId peer, Deadline deadline) -> Task<void> {
      while (host.peer(peer)->agent.empty() && !deadline.passed(host.runtime().now())) co_await host.runtime().yield();
    }(*alice, bob->id(), runtime->after(10s)));
    EXPECT_EQ(alice->peer(bob->id())->agent, agent);
    const auto listening = [](const Host& one) { return one.addresses().front().tcp_endpoint()->port; };
    const std::string name = algorithm_between(listening(*alice), listening(*bob));
    runtime->run(alice->close());
    runtime->run(bob->close());
    return name;
  }
};

TEST_F(CongestionControl, ConnectionsToCohivePeersSendByTheWantedAlgorithm) {
  EXPECT_EQ(algorithm("reno", "cohive/0.1"), "reno");
  const auto usual = transport::choose_congestion_control("").value();
  EXPECT_EQ(algorithm("", "cohive/0.1"), usual.empty() ? transport::default_congestion_control() : usual);
}

TEST_F(CongestionControl, ConnectionsToOtherPeersSendAsTheKernelHasIt) {
  EXPECT_EQ(algorithm("reno", "p2pd/0.1"), transport::default_congestion_control());
  EXPECT_EQ(algorithm("kernel", "cohive/0.1"), transport::default_congestion_control());
}

TEST_F(CongestionControl, BbrIsTheDefaultWhereTheKernelHasIt) {
  const auto bbr = transport::choose_congestion_control("bbr");
  EXPECT_EQ(transport::choose_congestion_control("").value(), bbr ? "bbr" : "");
}

TEST_F(CongestionControl, AnAlgorithmThatTheKernelLacksIsRefusedAtTheStart) {
  auto alice = host(1, "127.0.0.1", {.congestion_control = "no_such_one"});
  const auto started = alice->start();
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error(), cohive::Errc::invalid_argument);
  EXPECT_TRUE(started.error().detail().starts_with("the kernel has no congestion control \"no_such_one\""))
      << started.error();
}

}  // namespace
}  // namespace cohive::p2p
