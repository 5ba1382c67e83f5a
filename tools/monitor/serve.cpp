#include "monitor/serve.hpp"

#include <iostream>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/status.hpp"
#include "cohive/p2p/metrics_server.hpp"
#include "dht/values.hpp"
#include "monitor/exporter.hpp"
#include "monitor/view_json.hpp"

namespace cohive::tools {
namespace {

using nlohmann::json;

constexpr Duration kReach = 8s;          // a request has ten
constexpr std::size_t kTriesAtOnce = 8;  // each may search and dial

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Tries to reach peers for a caller.
class Reacher {
 public:
  explicit Reacher(Dht& dht) : dht_(dht) {}

  Task<p2p::MetricsAnswer> answer(std::string text) {
    const auto peer = PeerId::from_text(text);
    if (!peer) co_return p2p::MetricsAnswer{.status = 400, .body = R"({"error":"no peer id"})"};
    if (running_ >= kTriesAtOnce)
      co_return p2p::MetricsAnswer{.status = 503, .body = R"({"error":"other peers are being tried: ask again soon"})"};
    ++running_;
    const auto tried = on_exit([this] { --running_; });
    co_return p2p::MetricsAnswer{.body = text_of(co_await reach(*peer)) + "\n"};
  }

 private:
  Task<json> reach(PeerId peer) {
    p2p::Host& host = dht_.host();
    const Deadline deadline = dht_.runtime().after(kReach);
    json result{{"peer_id", peer.text()}, {"reachable", false}};
    if (const auto connected = co_await host.connect(peer, deadline); !connected) {
      result["message"] = "cannot connect: " + connected.error().message();
      co_return result;
    }
    const auto trip = co_await p2p::ping(host, peer, deadline);
    if (!trip) {
      result["message"] = "connected, but it does not answer: " + trip.error().message();
      co_return result;
    }
    result["reachable"] = true;
    result["rtt_seconds"] = to_seconds(*trip);
    if (const auto remote = host.remote_address(peer)) {
      result["address"] = remote->text();
      result["path"] = remote->is_circuit() ? "relayed" : "direct";
    }
    co_return result;
  }

  Dht& dht_;
  std::size_t running_ = 0;
};

/// The JSON of the newest view, made once for all requests.
class Shown {
 public:
  explicit Shown(const Collector& collector) : collector_(collector) {}
  const std::string& text() {
    if (text_.empty()) text_ = text_of(view_json(collector_.view(), collector_.looks()));
    return text_;
  }
  Task<p2p::MetricsAnswer> answer() { co_return p2p::MetricsAnswer{.body = text() + "\n"}; }
  void refresh() { text_.clear(); }

 private:
  const Collector& collector_;
  std::string text_;
};

void announce_page(const p2p::MetricsServer& server, bool as_json) {
  if (as_json) {
    std::cout << text_of({{"page", server.page_url()}, {"metrics", server.url()}}) << std::endl;
  } else {
    std::cout << "Page: " << server.page_url() << "\nMetrics: " << server.url() << std::endl;
  }
}

Task<void> keep_telling(Collector& collector, RunExporter& exporter, Shown& shown) {
  for (std::uint64_t failed = 0;;) {
    co_await collector.changed();
    for (; failed < collector.failed_looks(); ++failed) exporter.look_failed();
    exporter.update(collector.view());
    exporter.sees_run(!collector.misses_the_run());
    shown.refresh();
  }
}

}  // namespace

Task<int> serve_run(Dht& dht, ServeOptions options) {
  Runtime& runtime = dht.runtime();
  const auto network = transport::make_tcp_network(runtime);
  Collector collector(dht, options.collector, std::move(options.history));
  RunExporter exporter(runtime.metrics(), options.collector.run_id, options.peer_series);
  Shown shown(collector);
  Reacher reacher(dht);
  const auto section = Status::of(runtime).add("swarm", [&shown] { return shown.text(); });
  p2p::MetricsServer server(*network, [&collector] { return collector.sees_the_run(); }, {.token = options.token});
  server.add_path("/api/v1/state", [&shown](const std::string&) { return shown.answer(); });
  server.add_path(
      "/api/v1/is_reachable/", [&reacher](std::string peer) { return reacher.answer(std::move(peer)); },
      p2p::Effects::some);
  server.add_metrics([&exporter] { return exporter.peer_text(); });
  if (auto serving = server.start(options.address); !serving) throw ErrorException(serving.error());
  announce_page(server, options.json);
  std::vector<Task<void>> work;
  work.push_back(keep_telling(collector, exporter, shown));
  work.push_back(Collector::look_again_and_again(collector));
  work.push_back(Collector::crawl_again_and_again(collector));
  co_await when_all(runtime, std::move(work));
  co_return 0;
}

}  // namespace cohive::tools
