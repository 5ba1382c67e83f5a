#include "link_meter.hpp"

#include <algorithm>

namespace cohive::averaging {
namespace {

constexpr std::size_t kRemembered = 8;              // after which a maximum is forgotten
constexpr Duration kPeriod = 50ms;                  // of samples; shorter ones would measure bursts
constexpr Duration kShortest = 10ms;                // of the last one of a round
constexpr std::uint64_t kTellingBytes = 64 * 1024;  // bytes; less says more about latency than about the link

}  // namespace

void LinkMeter::measure(Stretch& stretch, std::uint64_t counter, double& best, Duration least) const {
  const TimePoint now = host_.runtime().now();
  const std::uint64_t bytes = counter - std::min(counter, stretch.bytes);
  if (bytes > 0 && (bytes < kTellingBytes || now - stretch.begin < least)) return;  // it goes on
  if (bytes > 0) best = std::max(best, static_cast<double>(bytes) / to_seconds(now - stretch.begin));
  stretch = {now, counter};
}

Task<void> LinkMeter::watch(LinkMeter& self) {
  self.rounds_.emplace_back();
  if (self.rounds_.size() > kRemembered) self.rounds_.pop_front();
  Runtime& runtime = self.host_.runtime();
  const p2p::Traffic before = self.host_.traffic();
  struct Watch {
    LinkMeter& meter;
    Stretch in, out;
    void sample(Duration least) {
      const p2p::Traffic traffic = meter.host_.traffic();
      meter.measure(in, traffic.bytes_in, meter.rounds_.back().in, least);
      meter.measure(out, traffic.bytes_delivered, meter.rounds_.back().out, least);
    }
    ~Watch() { sample(kShortest); }
  } watch{self, {runtime.now(), before.bytes_in}, {runtime.now(), before.bytes_delivered}};
  for (;;) {
    co_await runtime.sleep_for(kPeriod);
    watch.sample(kPeriod);
  }
}

LinkRates LinkMeter::rates() const {
  LinkRates best;
  for (const auto& round : rounds_) best = {std::max(best.out, round.out), std::max(best.in, round.in)};
  return best;
}

std::optional<double> LinkMeter::bandwidth() const {
  const LinkRates best = rates();
  if (best.in <= 0 || best.out <= 0) return std::nullopt;
  // The exchange needs both directions alike: the slower one counts.
  const auto limits = host_.limits();
  double bandwidth = std::min(best.in, best.out);
  if (limits.upload > 0) bandwidth = std::min(bandwidth, limits.upload);
  if (limits.download > 0) bandwidth = std::min(bandwidth, limits.download);
  return bandwidth;
}

}  // namespace cohive::averaging
