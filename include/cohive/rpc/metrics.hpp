/// \file
/// What the rpc module measures. Methods are those this program registers or calls, so label values stay few.
#pragma once

#include <string>
#include <string_view>

#include "cohive/core/metrics.hpp"

namespace cohive::rpc {

/// "rpc_find" of "DHTProtocol.rpc_find" or "prefix::Class.rpc_find".
inline std::string method_of(std::string_view protocol) { return std::string(protocol.substr(protocol.rfind('.') + 1)); }

inline Counter calls_counter(Metrics& metrics, std::string_view protocol, const char* side, const char* outcome) {
  return metrics.counter("cohive_rpc_calls_total", "Calls by method, side and outcome.",
                         {{"method", method_of(protocol)}, {"side", side}, {"outcome", outcome}});
}

}  // namespace cohive::rpc
