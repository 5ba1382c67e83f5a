/// \file
/// What the rpc module measures, per method and side. Methods are those this program registers or calls, never names
/// that come from a peer, so label values stay few.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cohive/core/metrics.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::rpc {

/// How a call ended.
enum class Outcome {
  ok,
  failed,     ///< the handler reported an error
  timeout,    ///< a deadline passed
  cancelled,  ///< the caller went away
  broken,     ///< transport failure: no connection, reset, ended early
  malformed,  ///< bytes that break the protocol
  refused,    ///< too many calls of one peer, or its handler is busy
};
inline constexpr std::size_t kOutcomes = 7;

struct MethodMetrics {
  MethodMetrics(Metrics& metrics, const std::string& method, const char* side);
  std::array<Counter, kOutcomes> calls;
  Counter bytes_sent, bytes_received;
  Histogram seconds;
};

/// The instruments of one loop: `runtime.local<RpcMetrics>()`.
class RpcMetrics {
 public:
  explicit RpcMetrics(Runtime& runtime) : runtime_(runtime) {}
  /// \param protocol "DHTProtocol.rpc_find" or "prefix::Class.rpc_find"; the label is "rpc_find".
  const MethodMetrics& client(std::string_view protocol) { return find(client_, protocol, "client"); }
  const MethodMetrics& server(std::string_view protocol) { return find(server_, protocol, "server"); }

 private:
  using Methods = std::unordered_map<std::string, MethodMetrics>;
  const MethodMetrics& find(Methods& methods, std::string_view protocol, const char* side);
  Runtime& runtime_;
  Methods client_, server_;
};

/// One call: counted when this object dies, and as cancelled unless told otherwise.
class CallRecord {
 public:
  CallRecord(Runtime& runtime, const MethodMetrics& metrics)
      : runtime_(runtime), metrics_(&metrics), start_(runtime.now()) {}
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;
  ~CallRecord();

  /// For a call that is over before this object is.
  void end(Outcome how) {
    outcome = how;
    end_ = runtime_.now();
  }

  Outcome outcome = Outcome::cancelled;
  std::uint64_t sent = 0, received = 0;

 private:
  Runtime& runtime_;
  const MethodMetrics* metrics_;
  TimePoint start_;
  std::optional<TimePoint> end_;
};

}  // namespace cohive::rpc
