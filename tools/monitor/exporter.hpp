// A run for Prometheus, on behalf of peers that cannot be scraped. docs/watching.md lists the metrics.
#pragma once

#include "cohive/core/metrics.hpp"
#include "monitor/run_view.hpp"

namespace cohive::tools {

class RunExporter {
 public:
  /// \param peers  at most so many peers have series of their own
  RunExporter(Metrics& metrics, std::string run_id, std::size_t peers);
  void update(const RunView& view);
  void look_failed() { failed_looks_.increment(); }
  /// Whether what is told is of now. It is until something else is said: the first look takes a while.
  void sees_run(bool sees) { sees_run_.set(sees ? 1 : 0); }
  /// The series of single peers, in Prometheus' text format: they come and go, and the registry keeps all for good. A
  /// peer that was told stays until it leaves the run; newcomers follow in the order of the view.
  const std::string& peer_text() const { return peer_text_; }

 private:
  Gauge gauge(const std::string& name, const std::string& help, MetricLabels labels = {});
  void tell_peers(const RunView& view);

  Metrics& metrics_;
  const std::string run_id_;
  const std::size_t most_peers_;
  Gauge epoch_, samples_, target_, rate_, loss_, eta_, trainers_, clients_, reachable_, unreachable_, parts_,
      last_look_, sees_run_;
  Counter failed_looks_;
  std::map<std::string, Gauge> warnings_, software_;
  std::vector<std::string> told_;
  std::string peer_text_;
};

}  // namespace cohive::tools
