/// \file
/// Group: the peers of one averaging round, and what each of them said about itself.
/// Source: docs/wire/hivemind.md, sections 6.1, 6.4 and 6.5.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohive/codec/codec_set.hpp"
#include "cohive/codec/compression.hpp"
#include "cohive/core/msgpack.hpp"
#include "cohive/core/peer_id.hpp"
#include "cohive/core/result.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::averaging {

/// How a peer takes part.
enum class PeerMode {
  node = 0,      ///< sends its tensors and reduces parts
  client = 1,    ///< cannot be reached: sends its tensors only
  auxiliary = 2  ///< has no tensors of its own that count: reduces parts
};

/// What a peer says about the speed of its link, by which the group divides the work.
class Bandwidth {
 public:
  /// Says nothing: as fast as the mean of the other members.
  Bandwidth() = default;
  /// Says a number, in any unit that is common to the group.
  Bandwidth(double value) : value_(value) {}
  /// Says what the link carried in the last rounds, in bytes per second; nothing before the first one.
  static Bandwidth measured() {
    Bandwidth result;
    result.measured_ = true;
    return result;
  }
  /// Tells whether this is measured(), also before the first round.
  bool is_measured() const noexcept { return measured_; }
  /// Returns the number given, if any.
  std::optional<double> value() const noexcept { return value_; }

 private:
  std::optional<double> value_;
  bool measured_ = false;
};

/// One peer of a group.
struct Member {
  PeerId peer;                      ///< identity of the member
  PeerMode mode = PeerMode::node;   ///< as the member says
  std::optional<double> bandwidth;  ///< as the member says; unset: it said nothing
  msgpack::Value data;              ///< what the peer put into its round: RoundOptions::gather
};

/// No link is faster, in bits or bytes a second: what a member claims beyond it counts as this.
inline constexpr double kMaxBandwidth = 1e12;
/// Bytes that a group gathers of one member.
inline constexpr std::size_t kMaxGatheredBytes = 256 * 1024;
/// Values of msgpack in them.
inline constexpr std::size_t kMaxGatheredValues = 4096;
/// Values of all members of a group together.
inline constexpr std::size_t kMaxGroupValues = 64 * 1024;

/// Counts containers and what they hold.
std::size_t count_values(const msgpack::Value& value);
/// Encodes what the group gathers of a member: hivemind's blob, without the peer id.
std::string encode_gathered(const Member& member);
/// Decodes the same. Errors: Errc::malformed, naming the peer, also where it holds more than it may.
/// \param values  msgpack values that there may be; takes off the ones that there are
Result<Member> decode_gathered(const PeerId& peer, std::string_view blob, std::size_t* values = nullptr);

/// How values travel in one round; all members come to the same.
struct RoundCodecs {
  /// Parts travel in it in place of AveragerOptions::codec; it needs no agreement. Unset: in that one.
  std::optional<codec::Compression> ordinary = std::nullopt;
  bool agreed = true;  ///< AveragerOptions::agreed_codec is used, where all members have offered it
};

/// What a GroupFinder finds. All members hold the same.
struct Group {
  std::string id;                 ///< unique; 20 bytes, or up to 64 of peers that choose otherwise
  std::vector<Member> members;    ///< in the order in which they share the work, this peer included
  PeerId leader;                  ///< the member that assembled the group
  codec::CodecSet agreed_codecs;  ///< of those that need agreement: what all members offered
  RoundCodecs codecs{};           ///< by what RoundOptions::codecs says of the members
  bool caps_shares = false;       ///< all members want that no member reduces more than twice an equal share
  bool one_average = false;       ///< all members want AveragerOptions::one_average
  std::string view{};             ///< of what a leader has told: it follows the id in those of all-reduces

  /// Returns the place of `peer` among the members.
  std::optional<std::size_t> index_of(const PeerId& peer) const;
};

/// Returns the deadline of a wait that begins now. A timeout of zero is none.
inline Deadline timeout_after(Runtime& runtime, Duration timeout) {
  return timeout > Duration::zero() ? runtime.after(timeout) : Deadline::never();
}

}  // namespace cohive::averaging
