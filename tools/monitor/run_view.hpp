// A run as a person sees it: made of what trainers tell (records.hpp) and of a map of the swarm (dht/crawl.hpp).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dht/crawl.hpp"
#include "dht/node_ping.hpp"
#include "monitor/merged_rounds.hpp"
#include "monitor/records.hpp"

namespace cohive::tools {

/// How a peer was found when it was last called.
struct Contact {
  bool reachable = false;
  Duration latency{};
  std::string agent;  ///< peer-supplied text
  std::vector<Multiaddr> addresses;
  std::optional<double> clock_ahead;
};

/// What is known of the swarm.
struct SwarmMap {
  std::vector<CrawledNode> nodes;
  std::map<PeerId, Contact> trainers;   ///< trainers that are in no routing table
  std::vector<Multiaddr> silent;        ///< initial peers that do not answer
  std::map<PeerId, RunReport> reports;  ///< of trainers that tell of their run
};

struct PeerView {
  enum class Role { trainer, client, node };
  Role role = Role::node;
  std::string id, agent, address;
  std::string software;  ///< "cohive", "hivemind", "other", or "unknown" for peers that cannot be asked
  std::optional<std::uint64_t> epoch, samples;
  std::optional<double> samples_per_second, loss, age;
  std::optional<bool> reachable;  ///< nullopt: a client, or not tried yet
  std::optional<double> rtt, clock_ahead;
  std::string schema_hash;  ///< of the model that it trains; empty: it does not tell
  std::size_t neighbours = 0;
};

/// What a person should know, in a sentence.
struct Warning {
  std::string kind;  ///< one word: "split", "clock", ...
  std::string message;
};

struct RunView {
  std::string run_id;
  double time = 0;              ///< when the trainers' reports were read; 0: not yet
  std::optional<double> ended;  ///< when trainers were seen last, where none reports any more: what they told is kept
  std::uint64_t epoch = 0;      ///< that trainers agree on
  std::uint64_t claimed = 0;    ///< the largest that a single peer claims
  double samples = 0, samples_per_second = 0;
  std::optional<double> target;
  bool target_estimated = true;
  std::optional<double> eta;   ///< seconds
  std::optional<double> loss;  ///< of the epoch before `loss_step`
  std::uint64_t loss_step = 0;
  double epoch_samples = 0;  ///< of that epoch, as far as trainers tell
  std::size_t trainers = 0, clients = 0;
  bool mapped = false;  ///< what follows is known
  std::size_t nodes = 0, reachable = 0;
  std::vector<std::size_t> parts;  ///< sizes of the parts of the DHT that do not know each other, largest first
  std::vector<PeerView> peers;     ///< trainers first
  /// Indices of `peers`: the first names the second. Of too many, those between the first peers, and a share of each.
  std::vector<std::pair<std::size_t, std::size_t>> links;
  struct RoundTrip {
    std::size_t from, to;  ///< indices of `peers`: what the first has measured
    double seconds;
  };
  std::vector<RoundTrip> round_trips;
  std::vector<MergedRound> rounds;
  std::vector<Warning> warnings;
};

struct ViewOptions {
  std::string run_id;
  std::optional<double> target;           ///< samples of an epoch, where it is known
  std::optional<double> last_epoch_size;  ///< else what the last epoch came to
  std::size_t max_links = 4000;
};

/// The largest epoch that two trainers have reached: a single peer may claim anything. Where there are but two, that of
/// the one that is ahead by one.
std::uint64_t agreed_epoch(const std::vector<TrainerReport>& trainers);
/// The mean of the middle half, of three the middle one: a peer that lies moves it little.
std::optional<double> middle_mean(std::vector<double> values);

/// Whether a view has seen the run, or knows when it was seen last: later ones are made with it as `before`.
bool saw_the_run(const RunView& view);
/// Of a run whose trainers have gone, keeps what `before` has seen of it: epoch, samples, target and loss.
void keep_what_was_seen(RunView& view, const RunView& before);

/// \param map  nullptr: not looked at yet
/// \param before  what was seen of the run last; nullptr: nothing
RunView make_view(const ViewOptions& options, double now, const RunRecords& records, const SwarmMap* map,
                  const RunView* before = nullptr);

std::string_view to_text(PeerView::Role role);

}  // namespace cohive::tools
