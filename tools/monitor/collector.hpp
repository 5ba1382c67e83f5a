// Collector: looks at a run again and again, and keeps what it has seen. Loop thread only.
//   every few seconds  the records of the trainers; every minute or so  a crawl of the DHT, and a call to each trainer
#pragma once

#include "cohive/core/sync.hpp"
#include "monitor/history.hpp"

namespace cohive::tools {

struct CollectorOptions {
  std::string run_id;
  std::vector<Multiaddr> initial_peers;
  Duration period = 5s, crawl_period = 60s;
  std::optional<double> target;
  std::string history_path;  ///< of the file to which looks are added; empty: none
  std::size_t max_nodes = 10'000;
};

class Collector {
 public:
  /// \param history  of this run, which goes on; nullopt: it begins now
  Collector(Dht& dht, CollectorOptions options, std::optional<LookHistory> history = std::nullopt);

  /// Both forever.
  static Task<void> look_again_and_again(Collector& self);
  static Task<void> crawl_again_and_again(Collector& self);
  /// Once.
  Task<void> look();
  Task<void> crawl();

  const RunView& view() const { return view_; }
  const std::deque<Look>& looks() const { return history_.looks(); }
  std::uint64_t failed_looks() const { return failed_looks_; }
  /// Whether the swarm has answered a look lately: what is shown is of now.
  bool sees_the_run() const { return answered_ && !misses_the_run(); }
  /// Whether the swarm should have answered by now: of a monitor that has just begun nothing is missing yet.
  bool misses_the_run() const;
  /// Completes with the next view, or look that failed.
  Task<void> changed() { co_await changed_.wait(); }

 private:
  Task<void> call_trainers(SwarmMap& map);
  static Task<void> call(Dht& dht, PeerId peer, Contact& contact);
  Task<void> read_reports(SwarmMap& map);
  static Task<void> read_report(Dht& dht, PeerId peer, std::string run_id, SwarmMap& map);
  static Task<void> call_initial(Dht& dht, Multiaddr address, SwarmMap& map);
  void refresh();
  void warn_if_blind();
  static Task<bool> append(Runtime& runtime, std::string path, std::string line);

  Dht& dht_;
  const CollectorOptions options_;
  LookHistory history_;
  const TimePoint began_;
  RunRecords records_;
  double records_read_ = 0;            // when; 0: not yet
  std::optional<TimePoint> answered_;  // the same by the clock that nobody sets
  bool blind_ = false;                 // the last look got no answer
  std::optional<SwarmMap> map_;
  RunView view_;
  RunView last_seen_;  ///< the latest view with trainers, or that of a run that has ended
  std::uint64_t failed_looks_ = 0;
  bool file_fails_ = false;
  Condition changed_;
};

}  // namespace cohive::tools
