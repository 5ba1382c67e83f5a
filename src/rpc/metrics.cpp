#include "cohive/rpc/metrics.hpp"

namespace cohive::rpc {

namespace {
constexpr std::array<const char*, kOutcomes> kOutcomeNames = {"ok",     "failed",    "timeout", "cancelled",
                                                              "broken", "malformed", "refused"};
}  // namespace

MethodMetrics::MethodMetrics(Metrics& metrics, const std::string& method, const char* side)
    : bytes_sent(metrics.counter("cohive_rpc_bytes_total", "Bytes of calls, by method, side and direction.",
                                 {{"method", method}, {"side", side}, {"direction", "sent"}})),
      bytes_received(metrics.counter("cohive_rpc_bytes_total", "Bytes of calls, by method, side and direction.",
                                     {{"method", method}, {"side", side}, {"direction", "received"}})),
      seconds(metrics.histogram("cohive_rpc_call_seconds", "Duration of calls, by method and side.",
                                {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300},
                                {{"method", method}, {"side", side}})) {
  for (std::size_t i = 0; i < kOutcomes; ++i) {
    calls[i] = metrics.counter("cohive_rpc_calls_total", "Calls, by method, side and outcome.",
                               {{"method", method}, {"side", side}, {"outcome", kOutcomeNames[i]}});
  }
}

const MethodMetrics& RpcMetrics::find(Methods& methods, std::string_view protocol, const char* side) {
  std::string method(protocol.substr(protocol.rfind('.') + 1));
  const auto found = methods.find(method);
  if (found != methods.end()) return found->second;
  return methods.emplace(method, MethodMetrics(runtime_.metrics(), method, side)).first->second;
}

CallRecord::~CallRecord() {
  metrics_->calls[static_cast<std::size_t>(outcome)].increment();
  if (sent) metrics_->bytes_sent.increment(static_cast<double>(sent));
  if (received) metrics_->bytes_received.increment(static_cast<double>(received));
  metrics_->seconds.observe(to_seconds(end_.value_or(runtime_.now()) - start_));
}

}  // namespace cohive::rpc
