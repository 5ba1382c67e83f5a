#include "round_checks.hpp"

#include <algorithm>
#include <cmath>
#include <variant>

#include "averaging/detail/lease.hpp"
#include "averaging/verification/verified_round.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/try.hpp"
#include "core/detail/assertion.hpp"

namespace cohive::averaging {
namespace {

constexpr double kMaxNormRatio = 30;     // times what was sent; batches differ, and with them the noise in gradients
constexpr double kMaxOfNoWeight = 1000;  // the same of a member of weight 0, whose values may be far behind
constexpr std::size_t kFewValues = 16;   // of a part, below which chance makes it far shorter than it is usually

/// Where contributions are clipped or trimmed no average is many times as long as what a member has sent, if its own
/// values are not far smaller than those of the others: that is no proof, and nobody is blamed. A few values may be
/// small by chance, as of a bias alone, and many are zero where a batch does not touch them, as of rare words: they
/// count as no smaller than what this member has sent is usually. That is counted when parts leave, for whoever lies
/// may be the first to answer. Only a member that has sent nothing but zeros has nothing to compare with.
class LengthChecks final : public RoundChecks {
 public:
  LengthChecks(Runtime& runtime, Setup setup) : runtime_(runtime), setup_(std::move(setup)) {}

  bool looks_at_answers() const override { return true; }

  Task<Result<std::string>> commit(Place, codec::Codec codec, EncodedStretch stretch, std::size_t length) override {
    AnsweredPart part;
    part.sent = std::move(stretch);
    part.sent_codec = codec;
    part.length = length;
    CO_TRY(const PartLengths squares, co_await work_on_values(runtime_, length, [part] { return lengths_of(part); }));
    sent_squares_ += squares.sent;
    sent_values_ += static_cast<double>(length);
    co_return std::string();
  }

  Task<Result<Fate>> look_at(std::size_t reducer, const AnsweredPart& part, std::string) override {
    if (!part.answer || part.length == 0) co_return Fate::apply;
    CO_TRY(const PartLengths squares,
           co_await work_on_values(runtime_, part.length, [part] { return lengths_of(part); }));
    COHIVE_ASSERT(sent_values_ >= static_cast<double>(part.length));
    const bool by_chance = part.length < kFewValues || squares.sent == 0;
    const double usual = by_chance ? sent_squares_ * static_cast<double>(part.length) / sent_values_ : 0.0;
    const double compared = std::max(squares.sent, usual);
    const double times = compared > 0 ? std::sqrt(squares.average / compared) : 0;
    if (times <= (setup_.weight > 0 ? kMaxNormRatio : kMaxOfNoWeight)) co_return Fate::apply;
    log::warn("averaging", "{} averaged a part to {:.0f} times what it was sent: that part keeps local values",
              setup_.peer(reducer), times);
    co_return Fate::keep_local;
  }

 private:
  Runtime& runtime_;
  const Setup setup_;
  double sent_squares_ = 0, sent_values_ = 0;  // of all parts that have left, or are about to
};

}  // namespace

bool is_fault(const std::error_code& code) {
  return code == Errc::wrong_average || code == Errc::bad_partition || code == cohive::Errc::malformed;
}

// ---- Nothing is checked

Task<Result<std::string>> RoundChecks::commit(Place, codec::Codec, EncodedStretch, std::size_t) {
  co_return std::string();
}

Task<Result<>> RoundChecks::take(Place, const PartMessage&, EncodedPart) {
  co_return ok();
}

Task<Result<std::shared_ptr<Contribution>>> RoundChecks::take_own(std::size_t, std::shared_ptr<OwnContribution>) {
  co_return nullptr;
}

std::string RoundChecks::transcript_digest(std::size_t, const PartSum&) {
  return {};
}

Task<Result<RoundChecks::Fate>> RoundChecks::look_at(std::size_t, const AnsweredPart&, std::string) {
  co_return Fate::apply;
}

Task<void> RoundChecks::settle(std::function<bool(std::size_t)>) {
  co_return;
}

const std::deque<AnsweredPart>* RoundChecks::held(std::size_t) {
  return nullptr;
}

std::optional<Error> RoundChecks::objection(std::size_t) const {
  return std::nullopt;
}

Result<> RoundChecks::hear(const PeerId& from, const proto::Verdict&) {
  return Error(Errc::bad_partition, from, "averages are not checked here");
}

std::unique_ptr<RoundChecks> make_checks(p2p::Host& host, const AveragerOptions& options,
                                         const AveragingMetrics& metrics, RoundChecks::Setup setup) {
  if (options.verified_share > 0)
    return std::make_unique<VerifiedRound>(host, metrics, std::move(setup), options.verified_share,
                                           options.aggregation);
  if (bears_liars(options.aggregation)) return std::make_unique<LengthChecks>(host.runtime(), std::move(setup));
  return std::make_unique<RoundChecks>();
}

}  // namespace cohive::averaging
