// Trainers that have averaged with each other tell each other their progress directly. The nodes that hold the run's
// record may keep the others' reports from one trainer, which would train on alone while all others wait for it.
// Source: docs/wire/extensions.md, section 20.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohive/rpc/rpc.hpp"
#include "cohive/train/sharded_run.hpp"

namespace cohive::train {

/// Loop thread only.
class MemberReports {
 public:
  /// \param own  returns this peer's report; nullopt while it does not train
  MemberReports(Dht& dht, std::string run_id, std::function<std::optional<ShardReport>()> own);
  /// Answers whoever asks, from now on.
  void serve();
  /// Asks some of `peers`, those that were not asked just now and have a connection. Returns whether one has told
  /// something new.
  Task<bool> ask(std::vector<PeerId> peers);
  /// Returns what a peer has told in the last minute; nullptr where it has not.
  const ShardReport* told(const PeerId& peer) const;

 private:
  struct Member {
    TimePoint again{}, heard{};
    std::optional<ShardReport> report{};
  };
  static Task<void> ask_one(MemberReports& self, PeerId peer, bool& news);

  Dht& dht_;
  const std::string method_;
  std::function<std::optional<ShardReport>()> own_;
  std::unordered_map<PeerId, Member> members_;
  std::optional<rpc::Server> server_;
};

}  // namespace cohive::train
