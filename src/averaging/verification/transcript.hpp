// What members prove to each other about an average: a sender signs each part that it sends, and a reducer binds
// itself, with the average, to the transcript of what it has made it of. Source: docs/wire/extensions.md, section 12.
#pragma once

#include <string>
#include <vector>

#include "cohive/core/crypto.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/core/result.hpp"

namespace cohive::averaging {

using Digest = crypto::Sha256Digest;

/// What one member has put into an average.
struct TranscriptEntry {
  std::size_t sender = 0;  ///< place in the group
  double weight = 0;
  int codec = 0;    ///< of the bytes, by its number on the wire
  Digest digest{};  ///< SHA-256 of the encoded values
};
/// In the order in which they were added.
using Transcript = std::vector<TranscriptEntry>;

std::string encode_transcript(const Transcript& transcript);
/// Errors: malformed, also for members that the group does not have or that are named twice.
Result<Transcript> parse_transcript(ByteView bytes, std::size_t members);

/// A part of a round as its sender signs it.
struct Commitment {
  std::string round;     ///< the group's id, followed by the phase
  PeerId reducer;        ///< that the part is sent to
  std::size_t part = 0;  ///< place among the parts of this reducer
  double weight = 0;
  int codec = 0;
  Digest digest{};  ///< as in the transcript
};
std::string seal_commitment(const KeyPair& key, const Commitment& commitment);
/// Errors: malformed, where `envelope` is not this commitment, signed by `sender`.
Result<> check_commitment(ByteView envelope, const PeerId& sender, const Commitment& expected);

}  // namespace cohive::averaging
