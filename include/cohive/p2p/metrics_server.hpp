/// \file
/// The HTTP endpoint that Prometheus scrapes: GET /metrics, /healthz and /readyz. Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cohive/core/result.hpp"
#include "cohive/transport/network.hpp"

namespace cohive::p2p {

class MetricsServer {
 public:
  /// \param ready  what /readyz answers
  MetricsServer(transport::Network& network, std::function<bool()> ready);
  ~MetricsServer();
  /// \param address  "host:port" with a numeric host ("127.0.0.1:9464", "[::1]:0"); port 0 takes any
  Result<> start(const std::string& address);
  /// "http://host:port/metrics".
  std::string url() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::p2p
