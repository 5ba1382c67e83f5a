// Swarm as programs use it: on real sockets, constructed by a thread that a user may interrupt.
#include "cohive/train/swarm.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "cohive/core/errors.hpp"
#include "cohive/core/keys.hpp"

namespace cohive {
namespace {

/// What accepts connections and never says a word: a firewall in between, or a node that hangs.
class Silent {
 public:
  Silent() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_, any, size), 0);
    EXPECT_EQ(::listen(socket_, 16), 0);
    EXPECT_EQ(::getsockname(socket_, any, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~Silent() { ::close(socket_); }
  std::string address() const {
    return "/ip4/127.0.0.1/tcp/" + std::to_string(port_) + "/p2p/" + KeyPair::generate_ed25519().peer_id().text();
  }

 private:
  int socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port_ = 0;
};

/// Joins, gives up when it is asked for the third time, and returns how long the constructor took after that.
std::chrono::nanoseconds time_to_give_up(SwarmOptions options) {
  int asked = 0;
  std::chrono::steady_clock::time_point given_up;
  options.host_maddrs = {"/ip4/127.0.0.1/tcp/0"};
  options.nat_port_map = false;
  options.bootstrap_timeout = std::chrono::minutes(10);
  options.wait_for_swarm = Duration::max();
  options.give_up = [&] {
    if (++asked == 3) given_up = std::chrono::steady_clock::now();
    return asked >= 3;
  };
  try {
    const Swarm swarm(options);
    ADD_FAILURE() << "joined a swarm that is not there";
  } catch (const ErrorException& error) {
    EXPECT_EQ(error.error(), Errc::closed) << error.what();
  }
  return std::chrono::steady_clock::now() - given_up;
}

TEST(SwarmJoining, IsGivenUpWhileAnAttemptGoesOn) {
  const Silent silent;
  EXPECT_LT(time_to_give_up({.initial_peers = {silent.address()}}), 1s);
  EXPECT_LT(time_to_give_up({.initial_peers = {silent.address(), silent.address()}, .client_mode = true}), 1s);
}

TEST(SwarmJoining, IsGivenUpWhileItLooksForACopyOfItsIdentity) {
  const Silent silent;
  const auto file = std::filesystem::temp_directory_path() / ("identity-" + std::to_string(::getpid()));
  EXPECT_LT(time_to_give_up({.initial_peers = {silent.address()}, .identity_path = file.string()}), 1s);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace cohive
