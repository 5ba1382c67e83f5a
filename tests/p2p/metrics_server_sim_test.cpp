#include "cohive/p2p/metrics_server.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log_output.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/status.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/transport/sim_network.hpp"

namespace cohive::p2p {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
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

  static Task<void> come_back_again_and_again(MetricsServerTest& self) {
    for (;;) {
      auto connection = co_await self.client->dial(Multiaddr::from_text(kEndpoint).value(), self.runtime.after(5s));
      if (connection) (void)co_await read_all(**connection);
      co_await self.runtime.yield();
    }
  }

  std::string exchange(const std::string& request) {
    auto connection = connect();
    runtime.run(write(*connection, request));
    return runtime.run(read_all(*connection));
  }
  std::string get(const std::string& target, const std::string& fields = "Host: 10.0.0.1:9464\r\n") {
    return exchange("GET " + target + " HTTP/1.1\r\n" + fields + "\r\n");
  }
  static std::string body_of(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }
  nlohmann::json status() { return nlohmann::json::parse(body_of(get("/status"))); }

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
  EXPECT_THAT(get("/nothing"), AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("/metrics")));
  EXPECT_THAT(exchange("DELETE /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD")));
  EXPECT_THAT(exchange("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody"),
              StartsWith("HTTP/1.1 405 "));
}

TEST_F(MetricsServerTest, ATargetMayBeAWholeUrlAsClientsOfAProxyWriteIt) {
  EXPECT_THAT(get("http://10.0.0.1:9464/healthz"), EndsWith("\r\n\r\nok\n"));
  EXPECT_THAT(get("HTTP://10.0.0.1:9464/debug/tasks?format=json"), HasSubstr("application/json"));
  EXPECT_THAT(get("http://10.0.0.1:9464"), HasSubstr("text/html"));
  EXPECT_THAT(get("http://10.0.0.1:9464?x"), HasSubstr("text/html"));
  EXPECT_THAT(exchange("HEAD http://10.0.0.1/healthz HTTP/1.1\r\n\r\n"), HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(get("http://10.0.0.1/nothing"), StartsWith("HTTP/1.1 404 "));
  // What the target names goes before the header field.
  EXPECT_THAT(get("http://evil.example/status"), StartsWith("HTTP/1.1 421 "));
  EXPECT_THAT(get("http://user@10.0.0.1/status"), StartsWith("HTTP/1.1 421 "));
  EXPECT_THAT(get("http://localhost/status", "Host: evil.example\r\n"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsServerTest, WhatHasEffectsIsNotDoneForAPageOfAnotherSite) {
  int done = 0;
  MetricsServer acting(*machine, [] { return true; });
  acting.add_path(
      "/act/",
      [&done](std::string) -> Task<MetricsAnswer> {
        ++done;
        co_return MetricsAnswer{.body = "done"};
      },
      Effects::some);
  acting.start("0.0.0.0:9465").value();
  const auto ask = [&](const std::string& method, const std::string& fields) {
    auto dial = client->dial(Multiaddr::from_text("/ip4/10.0.0.1/tcp/9465").value(), runtime.after(5s));
    auto connection = runtime.run(std::move(dial)).value();
    runtime.run(write(*connection, method + " /act/it HTTP/1.1\r\nHost: 10.0.0.1:9465\r\n" + fields + "\r\n"));
    return runtime.run(read_all(*connection)).substr(9, 3);
  };
  EXPECT_EQ(ask("GET", ""), "200") << "a program";
  EXPECT_EQ(ask("POST", "Content-Length: 0\r\n"), "200");
  EXPECT_EQ(ask("POST", "Content-Length: 0\r\nOrigin: http://10.0.0.1:9465\r\nSec-Fetch-Site: same-origin\r\n"), "200");
  EXPECT_EQ(ask("GET", "Sec-Fetch-Site: none\r\n"), "200") << "typed by a person";
  EXPECT_EQ(done, 4);
  for (const char* fields :
       {"Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\n", "Origin: http://evil.example\r\n",
        "Origin: null\r\n", "Origin: http://10.0.0.1:80\r\n", "Referer: https://evil.example/page\r\n"}) {
    EXPECT_EQ(ask("GET", fields), "403") << fields;
    EXPECT_EQ(ask("POST", std::string("Content-Length: 0\r\n") + fields), "403") << fields;
  }
  EXPECT_EQ(ask("HEAD", ""), "405");
  EXPECT_EQ(done, 4);
}

TEST_F(MetricsServerTest, HeadAnswersWithTheLengthAndWithoutTheText) {
  EXPECT_THAT(exchange("HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Content-Length: 3\r\n"), EndsWith("\r\n\r\n")));
}

TEST_F(MetricsServerTest, ARequestMayArriveByteByByte) {
  auto connection = connect();
  for (char c : std::string("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"))
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

TEST_F(MetricsServerTest, ClientsThatHangKeepNobodyOut) {
  std::vector<std::unique_ptr<transport::RawConnection>> idle;
  for (int i = 0; i < 40; ++i) idle.push_back(connect());
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(runtime.run(read_all(*idle.front())), "") << "the oldest had to go";
  runtime.run(write(*idle.back(), "GET /healthz HTTP/1.1\r\n\r\n"));
  EXPECT_THAT(runtime.run(read_all(*idle.back())), EndsWith("ok\n")) << "the newest are still served";
}

TEST_F(MetricsServerTest, SilentClientsThatComeBackAtOnceKeepNobodyOutOfTheSameAddress) {
  TaskGroup flood(runtime, "flood");
  for (int i = 0; i < 200; ++i) flood.spawn(come_back_again_and_again(*this), "silent client");
  runtime.run_for(1s);
  for (int i = 0; i < 5; ++i) EXPECT_THAT(get("/metrics"), StartsWith("HTTP/1.1 200"));
  flood.cancel();
}

TEST_F(MetricsServerTest, AFloodOfOneAddressKeepsNobodyElseOut) {
  const auto other = fabric.add_machine();
  auto honest = runtime.run(other->dial(Multiaddr::from_text(kEndpoint).value(), runtime.after(5s))).value();
  std::vector<std::unique_ptr<transport::RawConnection>> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(connect());
  runtime.run(write(*honest, "GET /healthz HTTP/1.1\r\n\r\n"));
  EXPECT_THAT(runtime.run(read_all(*honest)), EndsWith("ok\n")) << "though it came first";
}

TEST_F(MetricsServerTest, EndlessChunkExtensionsAreRefused) {
  auto connection = connect();
  runtime.run(write(*connection, "GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;"));
  for (int i = 0; i < 8; ++i) runtime.run(write(*connection, std::string(4096, 'x')));
  const TimePoint start = runtime.now();
  EXPECT_THAT(runtime.run(read_all(*connection)), StartsWith("HTTP/1.1 4"));
  EXPECT_LE(runtime.now() - start, 1s);
}

// ---- Who is answered

TEST_F(MetricsServerTest, AnswersToNumbersAndToNamesOfTheMachineAlone) {
  for (const char* host : {"10.0.0.1:9464", "127.0.0.1", "[::1]:9464", "localhost:9464", "LOCALHOST", "x.localhost"})
    EXPECT_THAT(get("/status", std::string("Host: ") + host + "\r\n"), StartsWith("HTTP/1.1 200 ")) << host;
  EXPECT_THAT(get("/metrics", ""), StartsWith("HTTP/1.1 200 ")) << "browsers name a host in every request";
  for (const char* host :
       {"evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "1"})
    for (const char* target : {"/status", "/metrics", "/", "/debug/log"})
      EXPECT_THAT(get(target, std::string("Host: ") + host + "\r\n"),
                  AllOf(StartsWith("HTTP/1.1 421 "), Not(HasSubstr("peer_id"))))
          << host << target;
}

TEST_F(MetricsServerTest, NoAnswerMayBeTakenForAnotherKindOrShownInAFrame) {
  for (const char* target : {"/", "/status", "/metrics", "/debug/log", "/nothing"})
    EXPECT_THAT(
        get(target),
        AllOf(HasSubstr("\r\nContent-Security-Policy: default-src 'none'"), HasSubstr("frame-ancestors 'none'"),
              HasSubstr("\r\nX-Content-Type-Options: nosniff\r\n"), HasSubstr("\r\nCache-Control: no-store\r\n")));
}

TEST_F(MetricsServerTest, ATokenIsAskedForWhereThereIsSomethingToSee) {
  MetricsServer guarded(*machine, [] { return true; }, {.token = "secret"});
  ASSERT_TRUE(guarded.start("10.0.0.1:9465"));
  const auto get = [this](const std::string& target, const std::string& fields) {
    auto dial = client->dial(Multiaddr::from_text("/ip4/10.0.0.1/tcp/9465").value(), runtime.after(5s));
    auto connection = runtime.run(std::move(dial)).value();
    runtime.run(write(*connection, "GET " + target + " HTTP/1.1\r\n" + fields + "\r\n"));
    return runtime.run(read_all(*connection));
  };
  for (const char* target : {"/status", "/metrics", "/debug/tasks", "/debug/log", "/nothing"}) {
    for (const char* fields :
         {"", "Authorization: Bearer secre\r\n", "Authorization: Bearer secrets\r\n", "Authorization: secret\r\n"})
      EXPECT_THAT(get(target, fields), AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("WWW-Authenticate: Bearer")))
          << target << fields;
    EXPECT_THAT(get(target, "Authorization: Bearer secret\r\n"), Not(StartsWith("HTTP/1.1 401 "))) << target;
  }
  EXPECT_THAT(get("/status", "Host: node7.example\r\nAuthorization: Bearer secret\r\n"), StartsWith("HTTP/1.1 200 "));
  for (const char* target : {"/", "/healthz", "/readyz"})
    EXPECT_THAT(get(target, ""), StartsWith("HTTP/1.1 200 ")) << target;
}

TEST(MetricsToken, IsTheFirstLineOfAFile) {
  const std::string path = testing::TempDir() + "cohive_token";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return read_token(path);
  };
  EXPECT_EQ(read("s3cret-token=\nmore").value(), "s3cret-token=");
  EXPECT_EQ(read("a+b/c\"%22==").value(), "a+b/c\"%22==");
  for (const std::string& bad :
       {std::string(), std::string("\n"), std::string("two words"), std::string(2000, 'x'), std::string("\xc3\xa9")})
    EXPECT_THAT(read(bad).error().message(), HasSubstr("without spaces")) << bad;
  ASSERT_TRUE(read("s3cret"));
  for (const auto mode : {0644, 0666, 0602}) {
    std::filesystem::permissions(path, static_cast<std::filesystem::perms>(mode));
    EXPECT_THAT(read_token(path).error().message(), HasSubstr("chmod 400")) << "as other secrets";
  }
  std::remove(path.c_str());
  EXPECT_THAT(read_token(path).error().message(), HasSubstr(path));
}

// ---- What is shown

TEST_F(MetricsServerTest, ShowsThePageWithThePolicyUnderWhichItsOwnScriptRuns) {
  const std::string answer = get("/"), page = body_of(answer);
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Content-Type: text/html; charset=utf-8"),
                            HasSubstr("connect-src 'self'"), Not(HasSubstr("unsafe"))));
  EXPECT_THAT(page, AllOf(StartsWith("<!doctype html>"), EndsWith("</html>\n")));
  const auto begin = page.find("<script>") + 8;
  const std::string script = page.substr(begin, page.find("</script>") - begin);
  EXPECT_THAT(script, HasSubstr("/status"));
  EXPECT_THAT(answer, HasSubstr("script-src 'sha256-" + crypto::base64_encode(crypto::sha256(as_bytes(script))) + "'"));
  for (const char* remote : {"http://", "https://", "innerHTML", "eval("}) {
    const bool namespace_of_svg =
        std::string(remote) == "http://" && script.find("http://www.w3.org/2000/svg") == script.rfind("http://");
    EXPECT_TRUE(script.find(remote) == script.npos || namespace_of_svg) << remote;
  }
}

TEST_F(MetricsServerTest, StatusIsWhatThePartsOfTheProcessTell) {
  EXPECT_EQ(status()["program"]["version"].get<std::string>().front(), '0');
  EXPECT_TRUE(status()["failures"].empty());
  {
    const auto one = Status::of(runtime).add("one", [] { return "{\"a\":1}"; });
    const auto again = Status::of(runtime).add("one", [] { return "2"; });
    const auto first = Status::of(runtime).add_to_list("list", [] { return "1"; });
    const auto second = Status::of(runtime).add_to_list("list", [] { return "\"two\""; });
    Failures::of(runtime).note("dial", "timeout", "no answer <script>");
    EXPECT_EQ(status()["one"], nlohmann::json::parse(R"({"a":1})"));
    EXPECT_EQ(status()["list"], nlohmann::json::parse(R"([1,"two"])"));
    EXPECT_EQ(status()["failures"][0]["cause"], "timeout");
  }
  EXPECT_FALSE(status().contains("one"));
  EXPECT_FALSE(status().contains("list"));
}

TEST_F(MetricsServerTest, FailuresOfOneKindAreBoundedAndLeaveOthersAlone) {
  Failures::of(runtime).note("round", "no_group", "the only round");
  for (int i = 0; i < 1000; ++i) Failures::of(runtime).note("dial", "refused", std::string(10'000, 'x'));
  const auto failures = status()["failures"];
  EXPECT_EQ(failures.size(), Failures::kKept + 1);
  EXPECT_LT(failures.dump().size(), Failures::kKept * 1000);
  EXPECT_EQ(std::count_if(failures.begin(), failures.end(), [](const auto& one) { return one["kind"] == "round"; }), 1);
}

TEST_F(MetricsServerTest, TasksSayWhatTheyWaitFor) {
  TaskGroup group(runtime, "sleepers");
  group.spawn([](Runtime& on) -> Task<void> { co_await on.sleep_for(1h); }(runtime), "a sleeper");
  runtime.run_for(5s);
  EXPECT_THAT(get("/debug/tasks"), HasSubstr("  sleepers / a sleeper: sleep\n"));
  const auto tasks = nlohmann::json::parse(body_of(get("/debug/tasks?format=json")));
  const auto sleeper =
      std::find_if(tasks.begin(), tasks.end(), [](const auto& task) { return task["name"] == "a sleeper"; });
  ASSERT_NE(sleeper, tasks.end());
  EXPECT_EQ((*sleeper)["waiting_for"], "sleep");
  EXPECT_GE((*sleeper)["age_seconds"], 5.0);
}

TEST_F(MetricsServerTest, TheLastLinesOfTheLogAreThereWhateverItsLevel) {
  log::configure({.level = log::Level::off});
  log::debug("test", "what happened before");
  EXPECT_THAT(get("/debug/log"),
              AllOf(HasSubstr("Content-Type: text/plain"), HasSubstr("debug test: what happened before\n")));
  log::configure({});
}

TEST_F(MetricsServerTest, AHostTellsItsPeersAndWhyOthersCouldNotBeDialled) {
  const auto second_machine = fabric.add_machine();
  Host host(*machine, KeyPair::generate_ed25519(),
            {.listen = {Multiaddr::from_text("/ip4/10.0.0.1/tcp/4001").value()}});
  Host other(*second_machine, KeyPair::generate_ed25519(), {.agent = "<b>\xff\"agent\""});
  ASSERT_TRUE(host.start());
  ASSERT_TRUE(other.start());
  ASSERT_TRUE(runtime.run(other.connect(host.visible_addresses().front(), runtime.after(10s))));
  const auto nobody = KeyPair::generate_ed25519().peer_id();
  const auto closed = Multiaddr::from_text("/ip4/10.0.0.1/tcp/4002").value().with_peer(nobody);
  EXPECT_FALSE(runtime.run(other.connect(closed, runtime.after(10s))));
  runtime.run_for(1s);
  const auto shown = status();
  EXPECT_EQ(shown["node"]["peer_id"], host.id().text());
  EXPECT_EQ(shown["node"]["join"], "INITIAL_PEERS=" + host.visible_addresses().front().text());
  ASSERT_EQ(shown["peers"].size(), 1u);
  const auto& peer = shown["peers"][0];
  EXPECT_EQ(peer["id"], other.id().text());
  EXPECT_THAT(peer["agent"].get<std::string>(), StartsWith("<b>"));
  EXPECT_EQ(peer["path"], "direct");
  EXPECT_EQ(peer["direction"], "the peer");
  EXPECT_GT(peer["bytes_in"], 0);
  ASSERT_FALSE(shown["failures"].empty());
  EXPECT_EQ(shown["failures"].back()["kind"], "dial");
  EXPECT_EQ(shown["failures"].back()["cause"], "refused");
  EXPECT_THAT(shown["failures"].back()["message"].get<std::string>(), HasSubstr(nobody.text()));
  EXPECT_THAT(get("/metrics"),
              AllOf(HasSubstr("cohive_p2p_dial_errors_total{reason=\"refused\"} 1"),
                    HasSubstr("cohive_transport_handshake_seconds_count 2"), HasSubstr("cohive_build_info{")));
}

TEST(MetricsServer, LeavesNothingBehind) {
  SimRuntime runtime(3);
  transport::SimFabric fabric(runtime);
  const auto machine = fabric.add_machine(), client = fabric.add_machine();
  auto server = std::make_unique<MetricsServer>(*machine, [] { return true; });
  ASSERT_TRUE(server->start("0.0.0.0:9464"));
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
  EXPECT_EQ(server.page_url(), "http://10.0.0.1:9464/");
  MetricsServer second(*machine, [] { return true; });
  const auto taken = second.start("10.0.0.1:9464");
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message(), HasSubstr("metrics address"));
}

}  // namespace
}  // namespace cohive::p2p
