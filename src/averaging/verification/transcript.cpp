#include "transcript.hpp"

#include <algorithm>
#include <set>

#include "cohive/core/errors.hpp"
#include "cohive/core/signed_envelope.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/averaging.pb.h"
#include "core/detail/bounded_parse.hpp"

namespace cohive::averaging {
namespace {

constexpr std::string_view kCommitmentDomain = "cohive-part-commitment";
constexpr std::string_view kCommitmentType = "/cohive/part-commitment";
constexpr std::size_t kEntryFields = 5;  // of a transcript, the entry itself included

std::string bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string payload_of(const Commitment& commitment) {
  proto::PartCommitment message;
  message.set_round(commitment.round);
  message.set_reducer(commitment.reducer.binary());
  message.set_part(static_cast<std::uint32_t>(commitment.part));
  message.set_weight(commitment.weight);
  message.set_codec(static_cast<std::uint32_t>(commitment.codec));
  message.set_digest(bytes_of(commitment.digest));
  return message.SerializeAsString();
}

}  // namespace

std::string encode_transcript(const Transcript& transcript) {
  proto::PartTranscript message;
  for (const TranscriptEntry& entry : transcript) {
    auto& encoded = *message.add_entries();
    encoded.set_sender(static_cast<std::uint32_t>(entry.sender));
    encoded.set_weight(entry.weight);
    encoded.set_codec(static_cast<std::uint32_t>(entry.codec));
    encoded.set_digest(bytes_of(entry.digest));
  }
  return message.SerializeAsString();
}

Result<Transcript> parse_transcript(ByteView bytes, std::size_t members) {
  const Error bad(cohive::Errc::malformed, "the transcript of an average");
  proto::PartTranscript message;
  if (!parse_bounded(message, bytes, kEntryFields * members)) return bad;
  Transcript transcript;
  std::set<std::size_t> senders;
  for (const auto& encoded : message.entries()) {
    TranscriptEntry entry{encoded.sender(), encoded.weight(), static_cast<int>(encoded.codec())};
    if (entry.sender >= members || !senders.insert(entry.sender).second) return bad;
    if (encoded.digest().size() != entry.digest.size()) return bad;
    std::ranges::copy(as_bytes(encoded.digest()), entry.digest.begin());
    transcript.push_back(entry);
  }
  return transcript;
}

std::string seal_commitment(const KeyPair& key, const Commitment& commitment) {
  return seal_envelope(key, kCommitmentDomain, kCommitmentType, payload_of(commitment));
}

Result<> check_commitment(ByteView envelope, const PeerId& sender, const Commitment& expected) {
  TRY(const auto opened, open_envelope(envelope, kCommitmentDomain, kCommitmentType));
  if (opened.signer.peer_id() != sender || opened.payload != payload_of(expected))
    return Error(cohive::Errc::malformed, sender, "the signature of a part");
  return ok();
}

}  // namespace cohive::averaging
