// Downloads that do their peer no good: it takes the whole state, and asks for it again. A trainer of hivemind refuses
// a state whose optimizer is not set up as its own, says so in its own log alone and asks again at once. The donor sees
// it by that.
#pragma once

#include <map>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::averaging {

class RepeatedDownloads {
 public:
  static constexpr std::size_t kTakenInVain = 2;  ///< whole states of about one epoch: hivemind needs no third one
  static constexpr Duration kAtOnce = 5s;         ///< in which no process is started anew and asks
  static constexpr std::size_t kMaxPeers = 256;

  explicit RepeatedDownloads(Runtime& runtime) : runtime_(runtime) {}

  /// A peer asks for the state. Warns when it does so again and again. Returns whether it has refused what it was
  /// given: it took all of it, and asks again at once, in the same epoch.
  /// \param epoch  of the state
  bool asks(const PeerId& peer, double epoch);
  /// It has been sent all of it.
  void took(const PeerId& peer, double epoch);

 private:
  struct Record {
    double epoch = 0;                    // of the first one that counts in `in_vain`
    std::size_t taken = 0, in_vain = 0;  // whole states; those of about one epoch
    bool refused = false;
    TimePoint first{}, last{}, warned{};
  };
  bool is_over(const Record& record) const;
  void warn(const PeerId& peer, Record& record) const;

  Runtime& runtime_;
  std::map<PeerId, Record> peers_;
};

}  // namespace cohive::averaging
