// HTTP/1.1 with Boost.Beast's parser and serialiser on our own connections; one request per connection.
#include "cohive/p2p/metrics_server.hpp"

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <optional>
#include <sstream>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/metrics.hpp"
#include "core/process_metrics.hpp"

namespace cohive::p2p {
namespace {

namespace http = boost::beast::http;

using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

constexpr std::uint32_t kMaxHeader = 8 * 1024;
constexpr std::uint64_t kMaxBody = 1024;  // a GET has none
constexpr std::size_t kMaxConnections = 32;
constexpr Duration kRequestTimeout = 10s;  // from accepting to the last byte of the answer

Response plain(http::status status, std::string body = {}) {
  Response response(status, 11, std::move(body));
  response.keep_alive(false);
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  return response;
}

Response refusal(bool header_too_large) {
  Response response = header_too_large ? plain(http::status::request_header_fields_too_large, "request too large\n")
                                       : plain(http::status::bad_request, "not an HTTP request\n");
  response.prepare_payload();
  return response;
}

Task<Result<>> send(transport::RawConnection& connection, Response response) {
  std::ostringstream text;
  text << response;
  const std::string bytes = text.str();
  const ByteView parts[] = {as_bytes(bytes)};
  co_return co_await connection.write_all(parts);
}

/// "host:port" as a multiaddr; an empty host is every interface.
std::optional<Multiaddr> parse_endpoint(const std::string& address) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) return std::nullopt;
  std::string host = address.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) host = "0.0.0.0";
  if (host == "localhost") host = "127.0.0.1";
  const auto parsed =
      Multiaddr::from_text((bracketed ? "/ip6/" : "/ip4/") + host + "/tcp/" + address.substr(colon + 1));
  if (!parsed || !parsed->tcp_endpoint()) return std::nullopt;
  return *parsed;
}

}  // namespace

struct MetricsServer::Impl {
  Impl(transport::Network& net, std::function<bool()> ready_check)
      : network(net),
        runtime(net.runtime()),
        ready(std::move(ready_check)),
        process(runtime.metrics()),
        tasks(runtime, "metrics server") {}

  Response answer(const Request& request) {
    Response response = plain(http::status::ok);
    const auto target = request.target().substr(0, request.target().find('?'));
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      response = plain(http::status::method_not_allowed, "only GET and HEAD\n");
      response.set(http::field::allow, "GET, HEAD");
    } else if (target == "/metrics") {
      response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
      process.update();
      response.body() = runtime.metrics().text();
    } else if (target == "/healthz") {
      response.body() = "ok\n";
    } else if (target == "/readyz") {
      response = ready() ? plain(http::status::ok, "ready\n") : plain(http::status::service_unavailable, "not ready\n");
    } else {
      response = plain(http::status::not_found, "try /metrics, /healthz or /readyz\n");
    }
    response.prepare_payload();
    if (request.method() == http::verb::head) response.body().clear();
    return response;
  }

  static Task<Result<>> serve(Impl& self, transport::RawConnection& connection) {
    http::request_parser<http::string_body> parser;
    parser.eager(true);
    parser.header_limit(kMaxHeader);
    parser.body_limit(kMaxBody);
    std::string received;
    Bytes chunk(kMaxHeader);
    while (!parser.is_done()) {
      auto count = co_await connection.read_some(chunk);
      if (!count) co_return count.error();
      if (*count == 0) co_return Error(Errc::end_of_stream, "HTTP request");
      received.append(reinterpret_cast<const char*>(chunk.data()), *count);
      boost::system::error_code error;
      received.erase(0, parser.put(boost::asio::buffer(received), error));
      if (error && error != http::error::need_more)
        co_return co_await send(connection, refusal(error == http::error::header_limit));
    }
    co_return co_await send(connection, self.answer(parser.get()));
  }

  static Task<void> handle(Impl& self, std::unique_ptr<transport::RawConnection> connection) {
    const Deadline deadline = self.runtime.after(kRequestTimeout);
    const auto served = co_await within(self.runtime, deadline, serve(self, *connection), "HTTP request");
    if (!served) log::debug("metrics", "a request is not answered: {}", served.error());
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
  ProcessMetrics process;
  std::unique_ptr<transport::Listener> listener;
  TaskGroup tasks;
};

MetricsServer::MetricsServer(transport::Network& network, std::function<bool()> ready)
    : impl_(std::make_unique<Impl>(network, std::move(ready))) {}
MetricsServer::~MetricsServer() = default;

Result<> MetricsServer::start(const std::string& address) {
  const auto endpoint = parse_endpoint(address);
  if (!endpoint)
    return Error(Errc::invalid_argument,
                 "metrics address " + log::quoted(address) + ": write host:port, for example 127.0.0.1:9464");
  auto listener = impl_->network.listen(*endpoint);
  if (!listener) return listener.error().with_context("metrics address");
  impl_->listener = std::move(*listener);
  impl_->tasks.spawn(Impl::accept(*impl_), "metrics accept");
  return ok();
}

std::string MetricsServer::url() const {
  const auto endpoint = impl_->listener->address().tcp_endpoint();
  const bool v6 = endpoint->host_code == Multiaddr::ip6;
  return "http://" + (v6 ? "[" + endpoint->host + "]" : endpoint->host) + ":" + std::to_string(endpoint->port) +
         "/metrics";
}

}  // namespace cohive::p2p
