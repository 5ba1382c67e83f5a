#include "link_fit.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cohive/codec/codec.hpp"
#include "cohive/core/log.hpp"
#include "core/detail/median.hpp"

namespace cohive::train {
namespace {

constexpr double kFirstSteps = 500;                    // of a trainer alone, before anything was measured
constexpr double kLeastSteps = 30;                     // that a round has by its own wish
constexpr double kStepsOfMomentum = 80;                // the same with much momentum, which multiplies steps
constexpr double kMostSteps = 500;                     // that a round has by its own wish at most
constexpr double kFewestBorne = 2, kMostBorne = 8000;  // of each trainer in an epoch, whatever others wish
constexpr double kSearches = 3;                        // that a round lasts as long as, at least
constexpr double kGrace = 0.25;                        // of a round, for a member that is late
constexpr double kShareBehind = 0.5;     // of a round that its exchange may take: links are not equally fast always
constexpr double kShareWaited = 0.04;    // of the time, where trainers wait for the exchange
constexpr double kMostWaited = 0.05;     // beyond which the reason is told
constexpr double kRoundsOfDownload = 2;  // after which its state is too old
constexpr double kNear = 1.25;           // what differs by less is the same
constexpr double kTold = 1.5;            // times that rounds become longer or shorter before that is told
constexpr double kMostChange = 4;        // from one round to the next
constexpr double kSparseBits = 0.32;     // of a value in sparse2: the mean of 0.16 up and 0.48 down
constexpr double kBackToMoreBits = 0.7;  // of the time that few bits would begin at: no change there and back
constexpr std::size_t kRounds = 3;       // of which the middle one counts
constexpr double kFloatBits = 32;        // of a value that travels as it is
constexpr double kMostSamples = 0x1p53;  // that a double counts
constexpr double kMostBeyondMiddle = 4;  // rounds are so many times as long as the middle wish at most
constexpr double kMostOfLink = 2, kMostOverhead = 2;  // times and seconds: see LinkFit::note
constexpr double kStateBits = 96;                     // of each parameter, its anchor and its momentum
constexpr double kDonors = 3;                         // that a state comes from, where there are so many
constexpr double kDownloadInRounds = 0.75;            // rounds that a newcomer's download of it lasts at least
constexpr double kQuickDownload = 0.05;               // rounds that it lasts on a link that carries full precision
constexpr double kOwnLink = 0.6;  // of the exchange: what the own link takes at its best is most of it

double bits_of(const codec::Compression& compression) {
  const auto codec = compression.fixed();
  if (codec && codec->codec == codec::Codec::sparse2) return kSparseBits;
  const double bits = codec ? codec::info(codec->codec).bits : 0;
  return bits > 0 ? bits : kFloatBits;
}

std::string name_of(const codec::Compression& compression) {
  const auto codec = compression.fixed();
  if (!codec) return "several codecs";
  if (codec->codec == codec::Codec::none) return "float32";
  std::string name(codec::name_of(codec->codec));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

template <class T, class Value>
double middle(const std::deque<T>& of, Value T::* value) {
  std::vector<double> values;
  for (const T& one : of) values.push_back(one.*value);
  return median(std::move(values));
}

bool is_chosen(const codec::Compression& compression) {
  const auto codec = compression.fixed();
  return !codec || codec->codec != codec::Codec::none;
}

double megabits(double bytes_per_second) {
  return bytes_per_second * 8 / 1e6;
}

}  // namespace

// ---- Wishes

void write_wish(const RoundWish& wish, msgpack::Array& to) {
  to.items.insert(to.items.end(), {wish.target, wish.few_bits, wish.given});
}

std::optional<RoundWish> read_wish(const msgpack::Array& from, std::size_t at) {
  if (from.items.size() < at + 3) return std::nullopt;
  const auto target = from.items[at].as_number();
  const auto* few_bits = from.items[at + 1].get_if<bool>();
  const auto* given = from.items[at + 2].get_if<bool>();
  if (!target || !few_bits || !given || !(*target >= 1 && *target <= kMostSamples)) return std::nullopt;
  return RoundWish{*target, *few_bits, *given};
}

std::optional<RoundWish> outcome_of(std::vector<RoundWish> wishes) {
  const auto given = static_cast<std::size_t>(std::ranges::count_if(wishes, &RoundWish::given));
  if (2 * given >= wishes.size()) std::erase_if(wishes, [](const RoundWish& one) { return !one.given; });
  if (wishes.empty()) return std::nullopt;
  std::ranges::sort(wishes, {}, &RoundWish::target);
  const double middle = wishes[(wishes.size() - 1) / 2].target;
  return RoundWish{std::min(wishes.back().target, middle * kMostBeyondMiddle),
                   std::ranges::any_of(wishes, &RoundWish::few_bits), 2 * given >= wishes.size()};
}

// ---- What the run has agreed on

/// A value in 8 bits would hide what a round has changed in it. So would float16 in the gains of norms, which are
/// near 1.
codec::Compression parameter_compression(const RunOptions& options, bool few_bits) {
  if (!few_bits || is_chosen(options.state_averaging_compression)) return options.state_averaging_compression;
  return codec::Compression::size_adaptive(kSmallTensor, codec::Codec::none, codec::Codec::float16);
}

LinkFit::LinkFit(const RunOptions& options)
    : fits_target_(options.fit_target_batch_size),
      fits_bits_(options.fit_compression),
      delayed_(options.delay_state_averaging),
      usual_target_(static_cast<double>(options.target_batch_size)),
      fragments_(options.outer_optimizer->fragments),
      least_steps_((options.outer_optimizer->momentum > kMuchMomentum ? kStepsOfMomentum : kLeastSteps) / fragments_),
      matchmaking_(to_seconds(options.matchmaking_time)),
      agrees_(fits_bits_ || options.agreed_grad_compression),
      ordinary_(options.grad_compression),
      agreed_(fits_bits_ ? codec::Codec::block4 : options.agreed_grad_compression.value_or(options.grad_compression)),
      parameters_(options.state_averaging_compression),
      few_parameters_(is_chosen(parameters_) ? parameters_ : codec::Codec::float16) {}

double LinkFit::target() const noexcept {
  const double target = target_.load(std::memory_order_relaxed);
  return target > 0 ? target : usual_target_;
}

void LinkFit::count(double samples) {
  double none = 0;
  if (fits_target_ && samples > 0)
    target_.compare_exchange_strong(none, std::max(1.0, kFirstSteps / fragments_ * samples), std::memory_order_relaxed);
}

RoundWish LinkFit::wish() const {
  RoundWish wish = wish_;
  if (wish.target == 0) wish = {target(), true};  // as little as can be on a link that is not known yet
  wish.given = !fits_target_;
  if (!fits_bits_) wish.few_bits = agrees_;
  return wish;
}

void LinkFit::restored() {
  if (fits_target_ && kept_ >= 1 && kept_ <= kMostSamples) target_ = kept_;
  // What was seen of the own link and the own steps holds for any rounds.
  if (!seen_.empty()) wish_ = {target(), wish_.few_bits};
}

void LinkFit::downloaded(double seconds, double round) {
  if (!(round > 0)) return;
  if (seen_.empty() && seconds < kQuickDownload * round) wish_ = {target(), false};
  if (!fits_target_ || seconds <= round) return;
  wish_ = {target() * std::min(seconds / round * kNear, kMostBeyondMiddle), true};
  if (seconds <= kRoundsOfDownload * round) return;
  log::warn("train",
            "the state took {:.0f} s to download, in which {:.0f} rounds of local steps have ended: this trainer takes "
            "part when rounds are longer",
            seconds, seconds / round);
}

void LinkFit::round_ended(const SeenRound& seen, std::vector<RoundWish> wishes) {
  const double target_then = target();
  const bool known = wish_.target > 0;
  of_parameters_ = seen.parameters;
  note(seen, target_then);
  agree(seen, std::move(wishes));
  const bool few_bits = std::exchange(wish_, {}).few_bits;
  if (!seen.whole || training_of(target_then) <= 0) {
    if (known && !few_bits) wish_ = {target(), false};
    return;
  }
  make_wish(target_then);
  tell(seen);
}

void LinkFit::agree(const SeenRound& seen, std::vector<RoundWish> wishes) {
  const double now = target();
  const auto outcome = outcome_of(std::move(wishes));
  if (outcome && fits_target_) {
    double least = now / kMostChange, most = now * kMostChange;
    // Members that bounded it by what is much or little for themselves would come to rounds of unlike length, for good:
    // beyond these bounds no honest member wishes.
    if (const double training = training_of(now); training > 0) {
      const double steps = training / step();
      least = std::max(least, now * kFewestBorne / fragments_ / steps);
      most = std::min(most, now * kMostBorne / steps);
    }
    // Newcomers get it as a float.
    target_ = static_cast<float>(std::clamp(outcome->target, std::min(least, most), most));
  }
  few_bits_ = outcome && outcome->few_bits;
  refused_ = few_bits_ && !seen.few_bits;
  kept_ = static_cast<float>(target());
}

// ---- What this peer has measured

/// A member that is slow, or silent, makes the exchange of all longer than its links would: what was measured counts as
/// twice what the own link needs, and a little more, at most.
/// \param target  samples of the round
void LinkFit::note(const SeenRound& seen, double target) {
  if (seen.steps == 0 || seen.computing <= 0 || seen.members < 2) return;
  const double bits = bits_of(codec_of(seen.few_bits)), link = seconds_of_link(seen, bits);
  double transfer = std::clamp(seen.transfer, 0.0, seen.behind);
  const double fixed = std::min(seen.behind - transfer, matchmaking_);
  if (link > 0) transfer = std::clamp(transfer, link, kMostOfLink * link + kMostOverhead);
  const auto members = static_cast<double>(seen.members);
  const double both_ways = 2 * (members - 1) / members;
  seen_.push_back({seen.computing / static_cast<double>(seen.steps), fixed, transfer / bits,
                   transfer / bits / seen.share / both_ways / std::min(members, kDonors),
                   seen.whole ? seen.computing : 0, seen.whole ? target : 0});
  if (seen_.size() > kRounds) seen_.pop_front();
}

/// Seconds that the own link needs for the values of a round, at its best; 0: unknown. Each member sends the parts of
/// the others and the averages of its own, and receives as much.
double LinkFit::seconds_of_link(const SeenRound& seen, double bits) {
  const auto members = static_cast<double>(seen.members);
  const double rate = std::min(seen.link.in, seen.link.out);
  return rate > 0 ? 2 * (members - 1) / members * seen.values * bits / 8 / rate : 0;
}

double LinkFit::step() const {
  return middle(seen_, &Seen::step);
}

/// Seconds that this peer trains while the run sees so many samples; 0: not known. Where a trainer waits for the
/// exchange, others fill much of one round, and it much of the next: the last ones count together.
double LinkFit::training_of(double samples) const {
  double computing = 0, seen = 0;
  for (const Seen& one : seen_) computing += one.computing, seen += one.samples;
  return seen > 0 ? samples * computing / seen : 0;
}

const codec::Compression& LinkFit::codec_of(bool few) const {
  if (of_parameters_) return few ? few_parameters_ : parameters_;
  return few ? agreed_ : ordinary_;
}

double LinkFit::bits(bool few) const {
  return bits_of(codec_of(few && !refused_));
}

/// Seconds that values of so many bits take behind the training.
double LinkFit::exchange(double bits) const {
  return middle(seen_, &Seen::fixed) + middle(seen_, &Seen::per_bit) * bits;
}

/// Seconds of training that hide it. While a newcomer downloads the state, not much more than a round may end.
double LinkFit::training_for(bool few) const {
  const double newcomer = kDownloadInRounds * middle(seen_, &Seen::download) * kStateBits;
  return std::max(newcomer, exchange(bits(few)) / (delayed_ ? kShareBehind : kShareWaited));
}

/// The share of their time that trainers wait where a round is so many seconds of training.
double LinkFit::waited_share(bool few, double training) const {
  const double waited = std::max(exchange(bits(few)) - (delayed_ ? training : 0), 0.0);
  return waited / (training + waited);
}

void LinkFit::make_wish(double target_then) {
  const double training = training_of(target_then);
  const double most = kMostSteps * step();
  const double least = std::min(std::max(least_steps_ * step(), kSearches * matchmaking_), most);
  RoundWish wish{target(), few_bits_};
  if (fits_bits_) {
    const double may_last = fits_target_ ? least : training;
    wish.few_bits = training_for(false) > may_last * (few_bits_ ? kBackToMoreBits : 1);
  }
  if (fits_target_) {
    const double seconds = std::clamp(training_for(wish.few_bits), least, most);
    const double change = std::clamp(seconds / training, 1 / kMostChange, kMostChange);
    const double target = std::max(1.0, target_then * change);
    if (target > wish.target * kNear || target < wish.target / kNear) wish.target = target;
  }
  wish_ = wish;
}

// ---- What it tells people

/// One line where the rounds have become others, or first hide their exchange, or do not any more.
void LinkFit::tell(const SeenRound& seen) {
  const double training = training_of(target()), steps = training / step();
  patience_ = delayed_ ? kGrace * training : 0;
  if (!fits_target_ && !fits_bits_) return;
  const double behind = exchange(bits(few_bits_)), waiting = waited_share(few_bits_, training);
  const bool hidden = waiting <= kMostWaited;
  const bool settled =
      wish_.few_bits == few_bits_ && wish_.target < target() * kNear && wish_.target > target() / kNear;
  const bool near = steps < told_steps_ * kTold && steps > told_steps_ / kTold;
  const bool same = near && told_few_ == few_bits_ && told_hidden_ == hidden;
  unsettled_ = settled ? 0 : unsettled_ + 1;
  untold_ = same ? 0 : untold_ + 1;
  const bool lasts = untold_ >= kRounds || (told_.empty() && settled) || unsettled_ == kRounds;
  if (same || !lasts) return;
  told_steps_ = steps, told_few_ = few_bits_, told_hidden_ = hidden;
  const std::string codec = name_of(codec_of(few_bits_ && !refused_));
  const std::string fragments = fragments_ > 1 ? log::format(" in {:.0f} fragments", fragments_) : std::string();
  told_ = log::format("H = {:.0f}{}, {} both ways: {:.1f} s of exchange {} {:.0f} s of training", steps * fragments_,
                      fragments, codec, behind, delayed_ ? "behind" : "after", training);
  if (!hidden)
    told_ += log::format(", so that trainers wait {:.0f} % of the time: {}", 100 * waiting, why_not(seen, steps));
  log::write(hidden ? log::Level::info : log::Level::warn, "train", told_);
}

std::string LinkFit::why_not(const SeenRound& seen, double steps) const {
  if (fits_bits_ && refused_) return "a member of the group does not offer " + name_of(agreed_);
  const bool own = seconds_of_link(seen, bits(few_bits_)) >= kOwnLink * exchange(bits(few_bits_));
  std::string why = own ? log::format("this link carries {:.1f} Mbit/s up and {:.1f} down", megabits(seen.link.out),
                                      megabits(seen.link.in))
                        : std::string("other members are slow, or end their rounds at other times");
  if (!fits_target_) return why + ", and target_batch_size is given";
  if (steps >= kMostSteps / kNear) return why + log::format(", and rounds have {:.0f} local steps at most", kMostSteps);
  if (wish_.target > target() * kNear) why += ", and most others wish for much shorter rounds";
  return why;
}

}  // namespace cohive::train
