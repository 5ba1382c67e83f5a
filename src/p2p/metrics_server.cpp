// HTTP/1.1 with Boost.Beast's parser and serialiser on our own connections; one request per connection.
#include "cohive/p2p/metrics_server.hpp"

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <sstream>

#include "cohive/core/combine.hpp"
#include "cohive/core/metrics.hpp"

namespace cohive::p2p {
namespace {

namespace http = boost::beast::http;

constexpr std::size_t kMaxHeader = 8 * 1024;
constexpr std::size_t kMaxConnections = 32;
constexpr Duration kRequestTimeout = 10s;

}  // namespace

struct MetricsServer::Impl {
  Impl(transport::Network& net, std::function<bool()> ready_check)
      : network(net), runtime(net.runtime()), ready(std::move(ready_check)), tasks(runtime, "metrics server") {}

  http::response<http::string_body> answer(const http::request<http::string_body>& request) {
    http::response<http::string_body> response;
    response.version(11);
    response.keep_alive(false);
    response.set(http::field::content_type, "text/plain; charset=utf-8");
    const auto target = request.target().substr(0, request.target().find('?'));
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      response.result(http::status::method_not_allowed);
    } else if (target == "/metrics") {
      response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
      response.body() = runtime.metrics().text();
    } else if (target == "/healthz") {
      response.body() = "ok\n";
    } else if (target == "/readyz") {
      const bool is_ready = ready();
      response.result(is_ready ? http::status::ok : http::status::service_unavailable);
      response.body() = is_ready ? "ready\n" : "not ready\n";
    } else {
      response.result(http::status::not_found);
      response.body() = "try /metrics, /healthz or /readyz\n";
    }
    response.prepare_payload();
    if (request.method() == http::verb::head) response.body().clear();
    return response;
  }

  static Task<Result<>> serve(Impl& self, transport::RawConnection& connection) {
    http::request_parser<http::string_body> parser;
    parser.header_limit(static_cast<std::uint32_t>(kMaxHeader));
    parser.body_limit(kMaxHeader);
    std::string received;
    Bytes chunk(kMaxHeader);
    while (!parser.is_done()) {
      auto count = co_await connection.read_some(chunk);
      if (!count) co_return count.error();
      if (*count == 0) co_return ok();
      received.append(reinterpret_cast<const char*>(chunk.data()), *count);
      boost::system::error_code error;
      const std::size_t used = parser.put(boost::asio::buffer(received), error);
      received.erase(0, used);
      if (error && error != http::error::need_more) co_return Error(Errc::malformed, "HTTP request");
      if (received.size() > kMaxHeader) co_return Error(Errc::limit_exceeded, "HTTP request");
    }
    std::ostringstream text;
    text << self.answer(parser.get());
    const std::string bytes = text.str();
    const ByteView parts[] = {as_bytes(bytes)};
    co_return co_await connection.write_all(parts);
  }

  static Task<void> handle(Impl& self, std::unique_ptr<transport::RawConnection> connection) {
    (void)co_await within(self.runtime, self.runtime.after(kRequestTimeout), serve(self, *connection), "HTTP request");
  }

  static Task<void> accept(Impl& self) {
    for (;;) {
      auto connection = co_await self.listener->accept();
      if (!connection) co_return;
      if (self.tasks.size() <= kMaxConnections) self.tasks.spawn(handle(self, std::move(*connection)), "HTTP request");
    }
  }

  transport::Network& network;
  Runtime& runtime;
  std::function<bool()> ready;
  std::unique_ptr<transport::Listener> listener;
  TaskGroup tasks;
};

MetricsServer::MetricsServer(transport::Network& network, std::function<bool()> ready)
    : impl_(std::make_unique<Impl>(network, std::move(ready))) {}
MetricsServer::~MetricsServer() = default;

Result<> MetricsServer::start(const std::string& address) {
  const auto colon = address.rfind(':');
  std::string host = colon == std::string::npos ? std::string() : address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host == "localhost" || host.empty()) host = host.empty() ? "0.0.0.0" : "127.0.0.1";
  const std::string port = colon == std::string::npos ? std::string() : address.substr(colon + 1);
  const auto multiaddr = Multiaddr::from_text((host.find(':') != std::string::npos ? "/ip6/" : "/ip4/") + host + "/tcp/" + port);
  if (port.empty() || !multiaddr) return Error(Errc::invalid_argument, "metrics address \"" + address + "\": write host:port, for example 127.0.0.1:9464");
  auto listener = impl_->network.listen(*multiaddr);
  if (!listener) return listener.error().with_context("metrics address");
  impl_->listener = std::move(*listener);
  impl_->tasks.spawn(Impl::accept(*impl_), "metrics accept");
  return ok();
}

std::string MetricsServer::url() const {
  const auto endpoint = impl_->listener->address().tcp_endpoint();
  const bool v6 = endpoint->host_code == Multiaddr::ip6;
  return "http://" + (v6 ? "[" + endpoint->host + "]" : endpoint->host) + ":" + std::to_string(endpoint->port) + "/metrics";
}

}  // namespace cohive::p2p
