// HTTP/1.1 with Boost.Beast's parser and serialiser on our own connections.
#include "http_server.hpp"

#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "p2p/detail/network_shares.hpp"

namespace cohive::p2p {
namespace {

namespace http = boost::beast::http;

using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

constexpr std::uint32_t kMaxHeader = 8 * 1024;
constexpr std::uint64_t kMaxBody = 1024;  // a GET has none
constexpr Duration kHttpTimeout = 10s;    // from accepting to the last byte of the answer

std::optional<HttpRequest::Method> method_of(const Request& request) {
  switch (request.method()) {
    case http::verb::get:
      return HttpRequest::Method::get;
    case http::verb::head:
      return HttpRequest::Method::head;
    case http::verb::post:
      return HttpRequest::Method::post;
    default:
      return std::nullopt;
  }
}

/// The length of "http://" or "https://" at the beginning of a target, as clients of a proxy write it; 0 for a path.
std::size_t scheme_length(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"})
    if (boost::beast::iequals(target.substr(0, scheme.size()), scheme)) return scheme.size();
  return 0;
}

/// \param method  of the request
HttpRequest read(const Request& request, HttpRequest::Method method) {
  HttpRequest result{.method = method,
                     .path = {},
                     .query = {},
                     .host = std::string(request[http::field::host]),
                     .authorization = std::string(request[http::field::authorization]),
                     .origin = std::string(request[http::field::origin]),
                     .referer = std::string(request[http::field::referer]),
                     .fetch_site = std::string(request["Sec-Fetch-Site"])};
  std::string_view target(request.target());
  if (const std::size_t scheme = scheme_length(target); scheme > 0) {
    target.remove_prefix(scheme);
    const auto end = std::min(target.find_first_of("/?"), target.size());
    result.host = target.substr(0, end);  // it goes before the header field: RFC 9112, section 3.2.2
    target.remove_prefix(end);
  }
  const auto mark = std::min(target.find('?'), target.size());
  result.path = target.substr(0, mark);
  if (result.path.empty()) result.path = "/";
  result.query = target.substr(std::min(mark + 1, target.size()));
  return result;
}

std::string bytes_of(HttpResponse answer, bool head_only) {
  Response response(http::int_to_status(answer.status), 11, std::move(answer.body));
  response.keep_alive(false);
  response.set(http::field::content_type, answer.content_type);
  response.set(http::field::cache_control, "no-store");
  response.set("Content-Security-Policy", answer.policy);
  response.set("X-Content-Type-Options", "nosniff");
  response.set("Referrer-Policy", "no-referrer");
  response.set("Cross-Origin-Resource-Policy", "same-origin");
  if (!answer.authenticate.empty()) response.set(http::field::www_authenticate, answer.authenticate);
  if (answer.status == 405) response.set(http::field::allow, answer.allow);
  response.prepare_payload();
  if (head_only) response.body().clear();
  std::ostringstream text;
  text << response;
  return std::move(text).str();
}

Task<Result<>> send(transport::RawConnection& connection, std::string bytes) {
  const ByteView parts[] = {as_bytes(bytes)};
  co_return co_await connection.write_all(parts);
}

HttpResponse refusal(bool header_too_large) {
  return header_too_large ? HttpResponse{.status = 431, .body = "request too large\n"}
                          : HttpResponse{.status = 400, .body = "not an HTTP request\n"};
}

}  // namespace

HttpServer::HttpServer(transport::Network& network, Answer answer)
    : network_(network),
      runtime_(network.runtime()),
      answer_(std::move(answer)),
      ended_(runtime_, "room for a request"),
      tasks_(runtime_, "HTTP server") {}

Result<> HttpServer::start(const Multiaddr& endpoint) {
  auto listener = network_.listen(endpoint);
  if (!listener) return listener.error();
  listener_ = std::move(*listener);
  tasks_.spawn(accept(*this), "HTTP accept");
  return ok();
}

Task<void> HttpServer::accept(HttpServer& self) {
  for (;;) {
    auto connection = co_await self.listener_->accept();
    if (!connection) co_return;
    co_await self.wait_for_slot();
    self.open_.push_back({connection->get(), networks_of((*connection)->remote_address()), self.runtime_.now()});
    self.tasks_.spawn(handle(self, std::move(*connection)), "HTTP request");
  }
}

Task<void> HttpServer::wait_for_slot() {
  while (open_.size() >= kMaxConnections) {
    const auto oldest = oldest_of_the_largest(open_, [](const Open& one) -> const Networks& { return one.networks; });
    const TimePoint may_go = oldest->since + kGrace;
    if (runtime_.now() < may_go) {
      co_await ended_.wait(Deadline(may_go));
      continue;
    }
    oldest->connection->close();  // its task ends by that
    open_.erase(oldest);
  }
}

Task<void> HttpServer::handle(HttpServer& self, std::unique_ptr<transport::RawConnection> connection) {
  const auto listed = on_exit([&self, listed = connection.get()] {
    self.open_.remove_if([listed](const Open& one) { return one.connection == listed; });
    self.ended_.notify_all();
  });
  const Deadline deadline = self.runtime_.after(kHttpTimeout);
  const auto served = co_await within(self.runtime_, deadline, serve(self, *connection), "HTTP request");
  if (!served) log::debug("metrics", "a request is not answered: {}", served.error());
}

Task<Result<>> HttpServer::serve(HttpServer& self, transport::RawConnection& connection) {
  http::request_parser<http::string_body> parser;
  parser.eager(true);
  parser.header_limit(kMaxHeader);
  parser.body_limit(kMaxBody);
  std::string received;
  Bytes chunk(kMaxHeader);
  while (!parser.is_done()) {
    auto count = co_await connection.read_some(chunk);
    if (!count) co_return count.error();
    if (*count == 0) co_return Error(cohive::Errc::end_of_stream, "HTTP request");
    // A body's chunk extensions are in no limit of the parser.
    if (received.size() > kMaxHeader) co_return co_await send(connection, bytes_of(refusal(true), false));
    received.append(reinterpret_cast<const char*>(chunk.data()), *count);
    boost::system::error_code error;
    received.erase(0, parser.put(boost::asio::buffer(received), error));
    if (error && error != http::error::need_more)
      co_return co_await send(connection, bytes_of(refusal(error == http::error::header_limit), false));
  }
  const auto method = method_of(parser.get());
  if (!method) co_return co_await send(connection, bytes_of({.status = 405, .body = "only GET and HEAD\n"}, false));
  auto answer = co_await self.answer_(read(parser.get(), *method));
  co_return co_await send(connection, bytes_of(std::move(answer), *method == HttpRequest::Method::head));
}

}  // namespace cohive::p2p
