// Asking a router for ports by PCP, on real sockets: a thread plays the router.
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>
#include <functional>
#include <mutex>
#include <thread>

#include "cohive/core/errors.hpp"
#include "cohive/core/task_group.hpp"
#include "p2p/port_mappers.hpp"

namespace cohive::p2p {
namespace {

using boost::asio::ip::udp;

/// What a request of RFC 6887 becomes as the answer of a router that grants it.
Bytes granted(Bytes request) {
  request[1] |= 0x80;
  request[3] = 0;
  std::fill(request.begin() + 8, request.begin() + 24, 0);
  const Bytes outer{5, 6, 7, 8};
  std::copy(outer.begin(), outer.end(), request.begin() + 56);
  return request;
}

/// Answers every datagram at a port of this machine, until it goes.
class FakeGateway {
 public:
  /// \param answer  what the datagram with this number is answered; empty: nothing
  explicit FakeGateway(std::function<Bytes(std::size_t number, Bytes request)> answer)
      : answer_(std::move(answer)),
        socket_(context_, udp::endpoint(boost::asio::ip::address_v4::loopback(), 0)),
        thread_([this] { serve(); }) {}
  ~FakeGateway() {
    udp::socket last(context_, udp::v4());
    last.send_to(boost::asio::buffer("", 1), {boost::asio::ip::address_v4::loopback(), port()});
    thread_.join();
  }
  std::uint16_t port() const { return socket_.local_endpoint().port(); }
  std::vector<Bytes> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    for (;;) {
      Bytes request(2000);
      udp::endpoint sender;
      request.resize(socket_.receive_from(boost::asio::buffer(request), sender));
      if (request.size() == 1) return;
      const std::size_t number = requests().size();
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      if (const Bytes answer = answer_(number, request); !answer.empty())
        socket_.send_to(boost::asio::buffer(answer), sender);
    }
  }
  const std::function<Bytes(std::size_t, Bytes)> answer_;
  boost::asio::io_context context_;
  udp::socket socket_;
  std::mutex mutex_;
  std::vector<Bytes> requests_;
  std::thread thread_;
};

Result<boost::asio::ip::address_v4> this_machine() {
  return boost::asio::ip::address_v4::loopback();
}

struct PcpMapper : testing::Test {
  std::unique_ptr<Runtime> runtime = make_runtime({.pool_threads = 1});
  std::unique_ptr<PortMapper> asking(const FakeGateway& gateway) {
    return make_pcp_mapper(*runtime, this_machine, gateway.port());
  }
  Result<PortMapping> map(PortMapper& mapper) { return runtime->run(mapper.map(4001, 4002, 10min)); }
};

TEST_F(PcpMapper, AsksInTheWordsOfTheStandard) {
  FakeGateway gateway([](std::size_t, Bytes request) { return granted(std::move(request)); });
  auto mapper = asking(gateway);
  const auto mapping = map(*mapper);
  ASSERT_TRUE(mapping) << mapping.error();
  EXPECT_EQ(*mapping, (PortMapping{4001, Multiaddr::from_ip_tcp("5.6.7.8", 4002).value(), 10min}));

  ASSERT_TRUE(runtime->run(mapper->unmap(*mapping)));
  const auto requests = gateway.requests();
  ASSERT_EQ(requests.size(), 2U);
  const Bytes nonce(requests[0].begin() + 24, requests[0].begin() + 36);
  Bytes expected{2, 1, 0, 0, 0, 0, 2, 88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  expected.insert(expected.end(), nonce.begin(), nonce.end());
  const Bytes rest{6, 0, 0, 0, 4001 >> 8, 4001 & 255, 4002 >> 8, 4002 & 255, 0, 0, 0, 0,
                   0, 0, 0, 0, 0,         0,          0xff,      0xff,       0, 0, 0, 0};
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(requests[0], expected);
  EXPECT_EQ(Bytes(requests[1].begin() + 4, requests[1].begin() + 8), Bytes(4, 0)) << "no lifetime: taken back";
  EXPECT_EQ(Bytes(requests[1].begin() + 24, requests[1].begin() + 36), nonce) << "by who has made it";
}

TEST_F(PcpMapper, ARouterThatKnowsOnlyNatPmpIsLeftToItAtOnce) {
  FakeGateway gateway([](std::size_t, Bytes) { return Bytes{0, 0x81, 0, 1, 0, 0, 0, 9}; });
  auto mapper = asking(gateway);
  const auto mapping = map(*mapper);
  ASSERT_FALSE(mapping);
  EXPECT_EQ(mapping.error(), cohive::Errc::not_found);
  EXPECT_EQ(gateway.requests().size(), 1U);
}

TEST_F(PcpMapper, ALostDatagramIsSentAgain) {
  FakeGateway gateway([](std::size_t number, Bytes request) { return number == 0 ? Bytes() : granted(request); });
  auto mapper = asking(gateway);
  EXPECT_TRUE(map(*mapper));
  EXPECT_EQ(gateway.requests().size(), 2U);
}

/// The only thread of the pool would be taken by the wait for its answer, and codecs and signatures wait behind it.
TEST_F(PcpMapper, ASilentRouterDelaysNoWorkOfThePool) {
  std::atomic<bool> computed = false;
  FakeGateway gateway(
      [&computed](std::size_t, Bytes request) { return computed ? granted(std::move(request)) : Bytes(); });
  auto mapper = asking(gateway);
  const auto compute_meanwhile = [](Runtime& loop, FakeGateway& router, std::atomic<bool>& done) -> Task<void> {
    while (router.requests().empty()) co_await loop.sleep_for(1ms);
    co_await loop.offload([] {});
    done = true;
  };
  TaskGroup other(*runtime);
  other.spawn(compute_meanwhile(*runtime, gateway, computed));
  EXPECT_TRUE(map(*mapper)) << "the router answers only when something was computed";
}

TEST_F(PcpMapper, ARefusalIsAnError) {
  FakeGateway gateway([](std::size_t, Bytes request) {
    Bytes answer = granted(std::move(request));
    answer[3] = 2;  // not authorised
    return answer;
  });
  auto mapper = asking(gateway);
  const auto mapping = map(*mapper);
  ASSERT_FALSE(mapping);
  EXPECT_EQ(mapping.error(), cohive::Errc::cancelled);
}

/// Only the router knows the nonce: a datagram with another one, or half of one, comes from elsewhere.
TEST_F(PcpMapper, AnswersToOtherRequestsAreLeftAside) {
  FakeGateway gateway([](std::size_t number, Bytes request) {
    Bytes answer = granted(std::move(request));
    if (number == 0) answer[24] ^= 1;
    if (number == 1) answer.resize(30);
    return answer;
  });
  auto mapper = asking(gateway);
  EXPECT_TRUE(map(*mapper));
  EXPECT_EQ(gateway.requests().size(), 3U);
}

TEST_F(PcpMapper, AnAnswerWithoutAnAddressIsMalformed) {
  FakeGateway gateway([](std::size_t, Bytes request) {
    Bytes answer = granted(std::move(request));
    answer[50] = 1;  // no IPv4 address
    return answer;
  });
  auto mapper = asking(gateway);
  const auto mapping = map(*mapper);
  ASSERT_FALSE(mapping);
  EXPECT_EQ(mapping.error(), cohive::Errc::malformed);
}

}  // namespace
}  // namespace cohive::p2p
