// HttpServer: HTTP/1.1 for a person's browser and for Prometheus. One GET, HEAD or POST per connection, within ten
// seconds. Of more than kMaxConnections at once, that of the network which has most of them goes that has been here
// longest: clients that say nothing, or read nothing, keep no other client out. Each has kGrace to say what it wants,
// so that clients that come back at once do not drive each other out; newcomers wait in the queue of the system. Loop
// thread only.
#pragma once

#include <functional>
#include <list>
#include <string>

#include "cohive/core/network_of.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/transport/network.hpp"

namespace cohive::p2p {

struct HttpRequest {
  enum class Method { get, head, post };
  Method method = Method::get;
  std::string path, query;                                 ///< of the target, as they came
  std::string host;                                        ///< of a target that is a whole URL, else the header field
  std::string authorization, origin, referer, fetch_site;  ///< header fields; empty where there is none
};

struct HttpResponse {
  unsigned status = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
  std::string policy = "default-src 'none'; frame-ancestors 'none'";  ///< Content-Security-Policy
  std::string authenticate;                                           ///< WWW-Authenticate, for 401
  std::string allow = "GET, HEAD";                                    ///< for 405
};

class HttpServer {
 public:
  static constexpr std::size_t kMaxConnections = 32;
  static constexpr Duration kGrace = 20ms;
  using Answer = std::function<Task<HttpResponse>(HttpRequest)>;

  HttpServer(transport::Network& network, Answer answer);
  /// Binds at once.
  Result<> start(const Multiaddr& endpoint);
  const transport::Listener& listener() const { return *listener_; }

 private:
  struct Open {
    transport::RawConnection* connection;
    Networks networks;
    TimePoint since;
  };
  using Connections = std::list<Open>;
  static Task<void> accept(HttpServer& self);
  Task<void> wait_for_slot();
  static Task<void> handle(HttpServer& self, std::unique_ptr<transport::RawConnection> connection);
  static Task<Result<>> serve(HttpServer& self, transport::RawConnection& connection);

  transport::Network& network_;
  Runtime& runtime_;
  Answer answer_;
  std::unique_ptr<transport::Listener> listener_;
  Connections open_;  // oldest first
  Condition ended_;   // one of them has
  TaskGroup tasks_;
};

}  // namespace cohive::p2p
