// The checks of a round whose averages are verified: what this peer sends and receives is signed, what it reduces is
// kept to be shown (AuditLog), and what it is answered is held until its reducers are believed (Verification). Source:
// docs/wire/extensions.md, section 12. Loop thread only.
#pragma once

#include "averaging/rounds/round_checks.hpp"
#include "verification.hpp"

namespace cohive::averaging {

class VerifiedRound final : public RoundChecks {
 public:
  /// \param share  of the parts that a member makes again
  VerifiedRound(p2p::Host& host, const AveragingMetrics& metrics, Setup setup, double share,
                const Aggregation& aggregation);

  bool looks_at_answers() const override { return true; }
  Task<Result<std::string>> commit(Place to, codec::Codec codec, EncodedStretch stretch, std::size_t) override;

  Task<Result<>> take(Place from, const PartMessage& message, EncodedPart part) override;
  Task<Result<std::shared_ptr<Contribution>>> take_own(std::size_t index,
                                                       std::shared_ptr<OwnContribution> own) override;
  std::string transcript_digest(std::size_t index, const PartSum& sum) override;

  Task<Result<Fate>> look_at(std::size_t reducer, const AnsweredPart& part, std::string transcript_digest) override;
  Task<void> settle(std::function<bool(std::size_t member)> is_expected) override;
  const std::deque<AnsweredPart>* held(std::size_t reducer) override { return &verification_.held(reducer); }
  std::optional<Error> objection(std::size_t reducer) const override { return verification_.objection(reducer); }
  std::size_t checked() const override { return verification_.checked(); }
  void end() override { verification_.end(); }

  Result<> hear(const PeerId& from, const proto::Verdict& verdict) override {
    return verification_.hear(from, verdict);
  }
  std::shared_ptr<AuditLog> ledger() const override { return audit_log_; }

 private:
  p2p::Host& host_;
  Runtime& runtime_;
  const Setup setup_;
  const std::shared_ptr<AuditLog> audit_log_;
  Verification verification_;
};

}  // namespace cohive::averaging
