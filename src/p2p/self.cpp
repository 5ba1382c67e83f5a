#include "self.hpp"

#include <algorithm>
#include <limits>

#include "circuit_message.hpp"
#include "cohive/core/log.hpp"

namespace cohive::p2p {
namespace {

/// A machine that allows few open files has fewer connections; each that is being set up takes one, too.
void fit(HostOptions& options, const transport::Transports& transports) {
  std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const auto& transport : transports) most = std::min(most, transport->max_connections());
  const std::size_t before = options.max_connections;
  const std::size_t wanted = options.max_connections + options.max_pending_inbound + options.max_dials;
  if (wanted > most) {
    for (std::size_t* part : {&options.max_connections, &options.max_pending_inbound, &options.max_dials})
      *part = std::max<std::size_t>(1, *part * most / wanted);
    log::warn("p2p", "the limit of open files leaves room for {} connections, not {}", options.max_connections, before);
  }
  options.high_water = std::min(options.high_water, options.max_connections);
  options.low_water = std::min(options.low_water, options.high_water);
}

/// A pong comes behind all that waits in the relay for the other end of a circuit.
transport::TransportOptions for_circuits(transport::TransportOptions options) {
  options.keepalive_timeout = std::max(options.keepalive_timeout, kCircuitStall);
  return options;
}

}  // namespace

Self::Self(Runtime& loop, KeyPair key, HostOptions opts, const std::vector<transport::MakeTransport>& make_transports)
    : runtime(loop),
      identity(std::move(key)),
      id(identity.peer_id()),
      options(std::move(opts)),
      memory(options.memory_budget > 0 ? options.memory_budget : default_memory_budget()),
      upgrader(runtime, identity, options.transport, memory),
      circuit_upgrader(upgrader.with_options(for_circuits(options.transport))),
      metrics(runtime.metrics()),
      reputation(runtime, metrics) {
  for (const auto& make : make_transports) transports.push_back(make(upgrader));
  fit(options, transports);
}

}  // namespace cohive::p2p
