/// \file
/// What the dht module measures.
#pragma once

#include "cohive/core/metrics.hpp"

namespace cohive::dht {

/// Calls of one kind, by outcome.
struct CallMetrics {
  CallMetrics(Metrics& metrics, const char* kind)
      : ok(counter(metrics, kind, "ok")),
        failed(counter(metrics, kind, "failed")),
        busy(counter(metrics, kind, "busy")),
        served(
            metrics.counter("cohive_dht_requests_served_total", "Requests of other nodes answered.", {{"kind", kind}})),
        refused(metrics.counter("cohive_dht_requests_refused_total",
                                "Requests of other nodes that were malformed or too many.", {{"kind", kind}})) {}
  static Counter counter(Metrics& metrics, const char* kind, const char* outcome) {
    return metrics.counter("cohive_dht_calls_total", "Calls to other nodes.", {{"kind", kind}, {"outcome", outcome}});
  }
  Counter ok, failed, busy, served, refused;
};

struct DhtMetrics {
  explicit DhtMetrics(Metrics& metrics)
      : ping(metrics, "ping"),
        store(metrics, "store"),
        find(metrics, "find"),
        gets_found(metrics.counter("cohive_dht_gets_total", "Keys looked up.", {{"outcome", "found"}})),
        gets_missed(metrics.counter("cohive_dht_gets_total", "Keys looked up.", {{"outcome", "missed"}})),
        stores_ok(metrics.counter("cohive_dht_stores_total", "Records stored for us by others.", {{"outcome", "ok"}})),
        stores_refused(
            metrics.counter("cohive_dht_stores_total", "Records stored for us by others.", {{"outcome", "refused"}})),
        records_accepted(metrics.counter("cohive_dht_records_offered_total", "Records others asked us to keep.",
                                         {{"outcome", "accepted"}})),
        records_refused(metrics.counter("cohive_dht_records_offered_total", "Records others asked us to keep.",
                                        {{"outcome", "refused"}})),
        records_invalid(
            metrics.counter("cohive_dht_invalid_records_total", "Records of others that failed validation.")),
        searches_timed_out(metrics.counter("cohive_dht_search_timeouts_total", "Searches cut off at their deadline.")),
        searches(metrics.counter("cohive_dht_searches_total", "Keys that were searched in the network by gets.")),
        search_calls(metrics.counter("cohive_dht_search_calls_total", "Find calls of these searches, by key.")),
        search_hops(metrics.counter("cohive_dht_search_hops_total", "Hops of these searches until the result.")),
        searches_crowded(metrics.counter("cohive_dht_crowded_searches_total",
                                         "Searches around whose key more ids are than chance brings.")),
        cache_refreshes(
            metrics.counter("cohive_dht_cache_refreshes_total", "Cached keys looked up again before expiry.")),
        rejoined(metrics.counter("cohive_dht_rejoins_total",
                                 "Times that the node had lost all others and found some again.")),
        nodes(metrics.gauge("cohive_dht_nodes", "Nodes in the routing table.")),
        stored(metrics.gauge("cohive_dht_records", "Records held.", {{"store", "storage"}})),
        cached(metrics.gauge("cohive_dht_records", "Records held.", {{"store", "cache"}})),
        get_seconds(metrics.histogram("cohive_dht_get_seconds", "Duration of gets that asked the network.", seconds())),
        store_seconds(metrics.histogram("cohive_dht_store_seconds", "Duration of stores.", seconds())) {}
  static std::vector<double> seconds() { return {.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}; }
  CallMetrics ping, store, find;
  Counter gets_found, gets_missed, stores_ok, stores_refused;
  Counter records_accepted, records_refused, records_invalid;
  Counter searches_timed_out, searches, search_calls, search_hops, searches_crowded, cache_refreshes, rejoined;
  Gauge nodes, stored, cached;
  Histogram get_seconds, store_seconds;
};

}  // namespace cohive::dht
