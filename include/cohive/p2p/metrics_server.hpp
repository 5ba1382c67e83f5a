/// \file
/// The HTTP endpoint of a program, for Prometheus and for a person's browser. Loop thread only.
///
///   /               a page that shows /status as it changes
///   /status         what the parts of the process tell (core/status.hpp), as JSON
///   /metrics        for Prometheus
///   /healthz        200 while the loop turns
///   /readyz         200 once the program serves its purpose, else 503
///   /debug/tasks    every coroutine and what it waits for; ?format=json
///   /debug/log      the last lines of the log, those of level debug included
///
/// It only answers GET and HEAD, and changes nothing; a further path that has effects takes GET and POST, and no
/// request that a page elsewhere makes in a browser. A request whose Host is neither a numeric address nor a name of
/// this machine is refused, unless a token is asked for: it may come from a page that gives its own name our address.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cohive/core/result.hpp"
#include "cohive/core/task.hpp"
#include "cohive/transport/network.hpp"

namespace cohive::p2p {

/// Which clients may look.
struct MetricsOptions {
  /// Asked for as "Authorization: Bearer <token>" by all but /, /healthz and /readyz; empty: none.
  std::string token = {};
};
/// Reads "host:port"; "[...]:port" for IPv6.
Result<Multiaddr> parse_metrics_address(const std::string& address);
/// Reads a token from the first line of a file.
Result<std::string> read_token(const std::string& path);

/// Whether a request for a further path has effects.
enum class Effects { none, some };

/// What a further path answers.
struct MetricsAnswer {
  unsigned status = 200;                          ///< of HTTP
  std::string body;                               ///< sent as it is
  std::string content_type = "application/json";  ///< of the body
};

/// Serves the page, /status, /metrics, health and diagnostics over HTTP. Loop thread only.
class MetricsServer {
 public:
  /// \param ready  what /readyz answers
  MetricsServer(transport::Network& network, std::function<bool()> ready, MetricsOptions options = {});
  ~MetricsServer();
  /// \param address  "host:port" with a numeric host ("127.0.0.1:9464", "[::1]:0"); no host is 127.0.0.1; port 0 takes
  /// any
  Result<> start(const std::string& address);
  /// Answers further paths, behind the token where there is one; before start(). What follows a path that ends in "/"
  /// is given to `answer`, "" for other paths. It has ten seconds.
  using Answer = std::function<Task<MetricsAnswer>(std::string rest)>;
  /// Adds such a path, which begins with "/".
  void add_path(std::string path, Answer answer, Effects effects = Effects::none);
  /// Adds text to what /metrics says, in Prometheus' format, of metrics that are not in the registry.
  void add_metrics(std::function<std::string()> text);
  /// "http://host:port/metrics".
  std::string url() const;
  /// "http://host:port/", as a browser on this machine finds it.
  std::string page_url() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::p2p
