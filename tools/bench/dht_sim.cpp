// Simulated swarms under churn, one row per size.

#include <iostream>

#include "bench/bench.hpp"
#include "cohive/core/log.hpp"
#include "scenarios/dht_churn.hpp"

namespace cohive::bench {

nlohmann::json dht_sim(const Settings& settings) {
  nlohmann::json rows = nlohmann::json::array();
  std::cerr << log::format("{:>6} {:>9} {:>6} {:>10} {:>9} {:>9} {:>7} {:>8} {:>10} {:>10} {:>8}\n", "nodes",
                           "gets ok %", "hops", "calls/get", "msgs/op", "stores", "table", "links", "B/s/node",
                           "KiB/node", "real s");
  for (const std::size_t nodes : settings.nodes) {
    sim::ChurnOptions options;
    options.nodes = nodes;
    options.seed = settings.seed;
    options.duration = from_seconds(settings.minutes * 60);
    options.gets_per_second = settings.gets_per_minute / 60;
    const sim::ChurnReport report = sim::run_churn(options);
    std::cerr << log::format(
        "{:>6} {:>9.3f} {:>6.2f} {:>10.1f} {:>9.1f} {:>9} {:>7.0f} {:>8.0f} {:>10.0f} {:>10.0f} {:>8.1f}\n", nodes,
        100 * report.success(), report.hops, report.calls_per_get, report.messages_per_operation, report.stores,
        report.table_size, report.connections, report.wire_bytes_per_node_second, report.memory_bytes_per_node / 1024,
        report.build_seconds + report.run_seconds);
    rows.push_back({{"nodes", nodes},
                    {"minutes", settings.minutes},
                    {"gets_per_minute", settings.gets_per_minute},
                    {"gets", report.gets},
                    {"gets_failed", report.gets_failed},
                    {"success", report.success()},
                    {"stores", report.stores},
                    {"stores_failed", report.stores_failed},
                    {"replaced", report.left},
                    {"joins_failed", report.joins_failed},
                    {"hops", report.hops},
                    {"calls_per_get", report.calls_per_get},
                    {"messages_per_operation", report.messages_per_operation},
                    {"table_size", report.table_size},
                    {"connections", report.connections},
                    {"wire_bytes_per_node_second", report.wire_bytes_per_node_second},
                    {"memory_bytes_per_node", report.memory_bytes_per_node},
                    {"build_seconds", report.build_seconds},
                    {"run_seconds", report.run_seconds}});
  }
  return {{"benchmark", "dht-sim"}, {"replaced_per_minute", sim::ChurnOptions().replaced_per_minute}, {"swarms", rows}};
}

}  // namespace cohive::bench
