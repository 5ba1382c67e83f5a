// What all fault scenarios have in common: peers of a simulated swarm, drawn by a seed, and a fault that strikes at
// some message. What the peers do is in fault_rounds.cpp and fault_downloads.cpp.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/core/log.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/testing/swarm.hpp"
#include "scenarios/fault_scenario.hpp"
#include "scenarios/handed_tensors.hpp"
#include "scenarios/hostile_peer.hpp"

namespace cohive::averaging {

enum class Fault { none, crash, death, stall, partition, resets, slow, leave, not_a_number, other_parts, hostile };
inline constexpr std::array kFaults = {"nothing",    "crash", "death", "stall",       "partition",   "resets",
                                       "slow links", "leave", "NaN",   "other parts", "hostile peer"};
inline constexpr double kSaid = 1e6;  // bandwidth of a peer that says one
inline constexpr Duration kRoundTimeout = 15s;
inline constexpr Duration kSlack = 3s;  // after which what was to end has not

class FaultSetting {
 public:
  explicit FaultSetting(std::uint64_t seed, bool one_average = false);
  virtual ~FaultSetting() = default;
  FaultSetting(const FaultSetting&) = delete;

  FaultReport run();

 protected:
  struct Participant {
    std::vector<std::vector<float>> values, inputs;
    AveragerOptions options;
    double weight = 1;
    ResidualsPtr residuals;                 // of tensors that are handed over
    std::unique_ptr<HandedTensors> handed;  // in this round; none: the averager's own
    std::unique_ptr<Dht> dht;
    std::unique_ptr<Averager> averager;
    std::unique_ptr<StateSharing> sharing;
    std::unique_ptr<HostilePeer> hostile;
    std::unique_ptr<TaskGroup> step;
    std::optional<Result<RoundReport>> result;
    TimePoint ended{};
    std::size_t shares = 0;  // a donor: which of the states
    bool lost = false;       // crashed, dead or hostile: nothing is asked of it
  };

  virtual bool is_download() const = 0;
  virtual void act() = 0;
  /// Whether a peer breaks the rules: else no peer has anything against another one.
  virtual bool has_offender() const = 0;

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
  template <class... Args>
  void violated(log::MessageFor<Args...> what, const Args&... args) {
    report_.violated.push_back(log::format(what, args...));
  }
  void observe(std::uint64_t value) { report_.digest = (report_.digest ^ value) * 0x9e3779b97f4a7c15ull + 1; }
  void draw_values(Participant& peer);
  void make_averager(Participant& peer);
  void set_links_of_victim(transport::SimLink link);
  void heal() {
    healing_.reset();
    swarm_.fabric().heal();
  }

  std::mt19937_64 random_;
  const Duration latency_;
  FaultReport report_;
  sim::Swarm swarm_;
  std::vector<std::uint32_t> shapes_;
  std::vector<std::unique_ptr<Participant>> peers_;
  std::vector<PeerId> ids_;     // of the peers, also of those that are gone
  std::set<PeerId> want_caps_;  // see capped_fractions
  Fault fault_ = Fault::none;
  std::size_t victim_ = 0;
  std::size_t rounds_before_ = 0;
  bool armed_ = false, round_after_ = false;

 private:
  void arrange();
  void choose_agreed_codec(AveragerOptions& options);
  void add_peer(AveragerOptions options);
  bool on_message();
  void strike();
  void clean_up();

  std::unique_ptr<TaskGroup> healing_, leaving_;
  const bool one_average_;    // most peers ask for it
  std::mt19937_64 asks_for_;  // it; apart from what else is drawn, so that seeds stay what they are without it
  std::size_t at_message_ = 0, messages_ = 0, repeats_ = 0, broken_ = 0;
  Duration heals_after_{};
};

std::unique_ptr<FaultSetting> make_round_faults(std::uint64_t seed, bool one_average);
std::unique_ptr<FaultSetting> make_download_faults(std::uint64_t seed);

}  // namespace cohive::averaging
