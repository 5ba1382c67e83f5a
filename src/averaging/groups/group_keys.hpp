// Which key of the DHT a peer looks for its next group under, and so with whom: drawn bits divide a large run, and
// those whose last round it is meet apart from those that go on.
//   <prefix>.0b<bits>        hivemind's
//   <prefix>.last.0b<bits>   peers that average no more afterwards
// Source: docs/wire/hivemind.md, section 6.5.
#pragma once

#include <string>

#include "cohive/averaging/group_finder.hpp"

namespace cohive::averaging {

class GroupKeys {
 public:
  explicit GroupKeys(const GroupOptions& options)
      : prefix_(options.prefix),
        fixed_(!options.initial_group_bits.empty()),
        target_(options.target_group_size),
        bits_(options.initial_group_bits) {}

  /// Notes that the next search begins. Returns whether it is for other peers than the one before.
  bool begin(const SearchPlan& plan, Runtime& runtime);
  /// Notes that it has found a group: of bits that were given, as hivemind's peers have them, the next ones follow
  /// from it.
  /// Returns as begin() does.
  bool found(const Group& group, const PeerId& own);

  std::string text() const { return key(last_); }
  const std::string& bits() const { return bits_; }
  /// Tells whether the peers under this key meet again: those that draw new bits after every round are meant to meet
  /// others.
  bool reforms() const { return bits_.empty(); }
  bool is_last() const { return last_; }
  /// Tells whether a key is that of peers that were with us, and average no more afterwards.
  bool is_of_last(const std::string& other) const { return other == key(true); }

 private:
  std::string key(bool last) const { return prefix_ + (last ? ".last" : "") + ".0b" + bits_; }
  bool move_to(std::string bits);

  const std::string prefix_;
  const bool fixed_;  // bits that were given instead of drawn
  const std::size_t target_;
  std::string bits_;
  bool last_ = false;
};

}  // namespace cohive::averaging
