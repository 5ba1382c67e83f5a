#include "cohive/p2p/metrics_server.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohive/core/metrics.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/transport/sim_network.hpp"

namespace cohive::p2p {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

const char* const kEndpoint = "/ip4/10.0.0.1/tcp/9464";

/// A server on one machine (10.0.0.1) and a client on another.
class MetricsServerTest : public testing::Test {
 protected:
  MetricsServerTest() { server.start("0.0.0.0:9464").value(); }

  std::unique_ptr<transport::RawConnection> connect() {
    auto dial = client->dial(Multiaddr::from_text(kEndpoint).value(), runtime.after(5s));
    return runtime.run(std::move(dial)).value();
  }

  static Task<void> write(transport::RawConnection& connection, std::string text) {
    const ByteView parts[] = {as_bytes(text)};
    (void)co_await connection.write_all(parts);
  }

  /// Everything until the server closes.
  static Task<std::string> read_all(transport::RawConnection& connection) {
    std::string text;
    Bytes chunk(1024);
    for (;;) {
      auto count = co_await connection.read_some(chunk);
      if (!count || *count == 0) co_return text;
      text.append(reinterpret_cast<const char*>(chunk.data()), *count);
    }
  }

  std::string exchange(const std::string& request) {
    auto connection = connect();
    runtime.run(write(*connection, request));
    return runtime.run(read_all(*connection));
  }
  std::string get(const std::string& target) { return exchange("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n"); }

  SimRuntime runtime{3};
  transport::SimFabric fabric{runtime};
  std::unique_ptr<transport::Network> machine = fabric.add_machine();
  std::unique_ptr<transport::Network> client = fabric.add_machine();
  bool ready = false;
  MetricsServer server{*machine, [this] { return ready; }};
};

TEST_F(MetricsServerTest, PrometheusReadsTheMetricsOfTheProcess) {
  runtime.metrics().counter("cohive_test_things_total", "Things.").increment(3);
  EXPECT_THAT(get("/metrics"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Type: text/plain; version=0.0.4"),
                    HasSubstr("\r\nContent-Length: "), HasSubstr("\ncohive_test_things_total 3\n")));
  EXPECT_THAT(get("/metrics?name=x"), HasSubstr("cohive_test_things_total 3"));
}

TEST_F(MetricsServerTest, HealthIsAlwaysGoodAndReadinessFollowsTheProgram) {
  EXPECT_THAT(get("/healthz"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nok\n")));
  EXPECT_THAT(get("/readyz"), StartsWith("HTTP/1.1 503 "));
  ready = true;
  EXPECT_THAT(get("/readyz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsServerTest, SaysWhatItDoesNotServe) {
  EXPECT_THAT(get("/"), AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("/metrics")));
  EXPECT_THAT(exchange("DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD")));
  EXPECT_THAT(exchange("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"),
              StartsWith("HTTP/1.1 405 "));
}

TEST_F(MetricsServerTest, HeadAnswersWithTheLengthAndWithoutTheText) {
  EXPECT_THAT(exchange("HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Content-Length: 3\r\n"), EndsWith("\r\n\r\n")));
}

TEST_F(MetricsServerTest, ARequestMayArriveByteByByte) {
  auto connection = connect();
  for (char c : std::string("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))
    runtime.run(write(*connection, std::string(1, c)));
  EXPECT_THAT(runtime.run(read_all(*connection)), EndsWith("ok\n"));
}

TEST_F(MetricsServerTest, NonsenseAndEndlessHeadersAreRefused) {
  EXPECT_THAT(exchange("\x13/multistream/1.0.0\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(exchange("GET / HTTP/1.1\r\nX: " + std::string(9000, 'x')), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(exchange("GET / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
}

TEST_F(MetricsServerTest, ASilentClientIsDroppedAfterTenSeconds) {
  auto connection = connect();
  const TimePoint start = runtime.now();
  runtime.run(write(*connection, "GET /metr"));
  EXPECT_EQ(runtime.run(read_all(*connection)), "");
  EXPECT_GE(runtime.now() - start, 9s);
  EXPECT_LE(runtime.now() - start, 11s);
}

TEST_F(MetricsServerTest, ServesOthersWhileAtMost32ClientsHang) {
  std::vector<std::unique_ptr<transport::RawConnection>> idle;
  for (int i = 0; i < 31; ++i) idle.push_back(connect());
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200 "));
  idle.push_back(connect());
  EXPECT_EQ(get("/healthz"), "") << "the 33rd is turned away";
  idle.clear();
  runtime.run_for(1s);
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST(MetricsServer, LeavesNothingBehind) {
  SimRuntime runtime(3);
  transport::SimFabric fabric(runtime);
  const auto machine = fabric.add_machine(), client = fabric.add_machine();
  auto server = std::make_unique<MetricsServer>(*machine, [] { return true; });
  ASSERT_TRUE(server->start(":9464"));
  {
    auto dial = client->dial(Multiaddr::from_text(kEndpoint).value(), runtime.after(5s));
    auto hanging = runtime.run(std::move(dial)).value();
    runtime.run_for(1s);
    server.reset();
  }
  runtime.run_for(1s);
  EXPECT_EQ(runtime.task_count(), 0u);
  EXPECT_EQ(fabric.open_connections(), 0u);
  auto dial = client->dial(Multiaddr::from_text(kEndpoint).value(), runtime.after(5s));
  EXPECT_FALSE(runtime.run(std::move(dial))) << "the port is free again";
}

TEST(MetricsServer, SaysHowToWriteTheAddressAndWhereItListens) {
  SimRuntime runtime(3);
  transport::SimFabric fabric(runtime);
  const auto machine = fabric.add_machine();
  for (const char* bad : {"", "9464", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000", "no host:1", "::1:9464"}) {
    MetricsServer server(*machine, [] { return true; });
    const auto started = server.start(bad);
    ASSERT_FALSE(started) << bad;
    EXPECT_THAT(started.error().message(), HasSubstr("for example 127.0.0.1:9464"));
  }
  MetricsServer server(*machine, [] { return true; });
  ASSERT_TRUE(server.start("10.0.0.1:9464"));
  EXPECT_EQ(server.url(), "http://10.0.0.1:9464/metrics");
  MetricsServer second(*machine, [] { return true; });
  const auto taken = second.start("10.0.0.1:9464");
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message(), HasSubstr("metrics address"));
}

}  // namespace
}  // namespace cohive::p2p
