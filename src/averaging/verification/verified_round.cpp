#include "verified_round.hpp"

#include <algorithm>
#include <utility>

#include "averaging/detail/lease.hpp"
#include "averaging/rounds/sent_part.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/try.hpp"

namespace cohive::averaging {

VerifiedRound::VerifiedRound(p2p::Host& host, const AveragingMetrics& metrics, Setup setup, double share,
                             const Aggregation& aggregation)
    : host_(host),
      runtime_(host.runtime()),
      setup_(std::move(setup)),
      audit_log_(std::make_shared<AuditLog>(runtime_, setup_.group, setup_.own_lengths, share)),
      verification_(host, metrics, {setup_, share, aggregation}) {}

/// The signature of what is sent.
Task<Result<std::string>> VerifiedRound::commit(Place to, codec::Codec codec, EncodedStretch stretch, std::size_t) {
  Commitment commitment{setup_.id, setup_.peer(to.member), to.index, setup_.weight, static_cast<int>(codec)};
  auto seal = [key = host_.identity(), commitment = std::move(commitment), stretch]() mutable -> Result<std::string> {
    commitment.digest = crypto::sha256(stretch.bytes);
    return seal_commitment(key, commitment);
  };
  co_return co_await offload_leased(runtime_, std::move(seal));
}

/// What a sender signs is what its part is shown as, so that this peer cannot be made to show another one.
Task<Result<>> VerifiedRound::take(Place from, const PartMessage& message, EncodedPart part) {
  if (part.dtype != codec::DType::float32) co_return Error(Errc::bad_partition, "values that are not float32");
  AuditLog::Contribution contribution{message.weight, part, {}, message.commitment};
  Commitment commitment{setup_.id, host_.id(), from.index, message.weight, static_cast<int>(part.codec)};
  auto work = [commitment = std::move(commitment), sender = setup_.peer(from.member), envelope = message.commitment,
               part = std::move(part)]() mutable -> Result<Digest> {
    commitment.digest = crypto::sha256(part.buffer);
    if (auto checked = check_commitment(as_bytes(envelope), sender, commitment); !checked) return checked.error();
    return commitment.digest;
  };
  CO_TRY(contribution.digest, co_await runtime_.offload(std::move(work)));
  audit_log_->add(from.index, from.member, std::move(contribution));
  co_return ok();
}

/// Our own values as other members can be shown them: a copy, for the tensor changes with the average.
Task<Result<std::shared_ptr<Contribution>>> VerifiedRound::take_own(std::size_t index,
                                                                    std::shared_ptr<OwnContribution> own) {
  const std::size_t length = setup_.own_lengths[index];
  auto work = [own = std::move(own), length]() -> Result<std::pair<EncodedPart, Digest>> {
    auto read = own->open();
    if (!read) return read.error();
    EncodedPart copy;
    copy.record = Slice::uninitialised(length * sizeof(float));
    copy.buffer = copy.record.view();
    if (!(*read)(0, {reinterpret_cast<float*>(copy.record.mutable_data()), length}))
      return Error(Errc::round_cancelled);
    const Digest digest = crypto::sha256(copy.buffer);
    return std::pair(std::move(copy), digest);
  };
  auto kept = co_await runtime_.offload(std::move(work));
  if (!kept) co_return kept.error();
  auto& [copy, digest] = *kept;
  audit_log_->add(index, setup_.own_index, {setup_.weight, copy, digest, {}});
  co_return std::make_shared<SentPart>(std::make_shared<const EncodedPart>(std::move(copy)), length, setup_.weight);
}

/// What makes no average can be shown as well: members may ask why there is none.
std::string VerifiedRound::transcript_digest(std::size_t index, const PartSum& sum) {
  const Digest& digest = audit_log_->close(index, sum.senders);
  return sum.has_average ? std::string(as_text(digest)) : std::string();
}

/// An answer without a transcript says that there is no average.
Task<Result<RoundChecks::Fate>> VerifiedRound::look_at(std::size_t reducer, const AnsweredPart& part,
                                                       std::string transcript_digest) {
  AnsweredPart answered = part;
  Digest digest{};
  if (transcript_digest.empty())
    answered.answer = nullptr;
  else if (transcript_digest.size() == digest.size())
    std::ranges::copy(as_bytes(transcript_digest), digest.begin());
  else
    co_return Error(cohive::Errc::malformed, "the hash of a transcript");
  CO_TRY(co_await verification_.hold(reducer, std::move(answered), digest));
  co_return Fate::hold;
}

Task<void> VerifiedRound::settle(std::function<bool(std::size_t)> is_expected) {
  return verification_.await_verdicts(std::move(is_expected));
}

}  // namespace cohive::averaging
