#include "faster_donor.hpp"

#include <algorithm>
#include <limits>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kLookPeriod = 5s;     // over which the pace of the download is measured, at least
constexpr Duration kSilence = 20s;       // without a piece: that is no pace any more. On a slow link one takes seconds
constexpr double kNotWorthwhile = 10;    // seconds: a download that is nearly through goes on as it is
constexpr std::size_t kTrialPieces = 4;  // half a megabyte
constexpr Duration kTrialTime = 20s;     // a donor that takes longer, if only to hash its state, is no faster one
constexpr double kMuchSooner = 2;        // times: what has come of another state is given up

struct Trial {
  DonorCall call;
  double seconds = 0;  // for its whole state
};

Task<Result<Trial>> try_donor(Dht& dht, PeerId donor, const PieceSource& source) {
  Runtime& runtime = dht.runtime();
  auto call = co_await call_donor(dht.host(), donor, source.protocol, {}, source.chunk_timeout, source.max_bytes);
  if (!call) co_return call.error();
  const Manifest& manifest = call->manifest;
  if (manifest.bytes == 0) co_return Error(Errc::no_donor, donor, "its state is empty");
  const TimePoint begin = runtime.now();
  const std::size_t pieces = std::min(kTrialPieces, manifest.hashes.size());
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::string request = encode_piece_request(static_cast<std::uint32_t>(i));
    if (auto sent = co_await call->call->send(as_bytes(request), runtime.after(source.chunk_timeout)); !sent)
      co_return sent.error();
  }
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < pieces; ++i) {
    auto record = co_await call->call->receive(runtime.after(source.chunk_timeout));
    if (!record) co_return record.error();
    if (!*record) co_return Error(Errc::no_donor, donor, "it ended before its pieces");
    const auto piece = parse_piece((*record)->view());
    if (!piece || piece->index != i || crypto::sha256(piece->data) != manifest.hashes[i])
      co_return Error(Errc::bad_state, donor, "a piece is not what its hash says");
    bytes += manifest.bytes_of(manifest.piece(i));
  }
  const double share = static_cast<double>(manifest.bytes) / static_cast<double>(bytes);
  const double seconds = to_seconds(runtime.now() - begin) * share;
  co_return Trial{std::move(*call), seconds};
}

/// What a look at a download shows, in seconds.
struct DownloadPace {
  double left = std::numeric_limits<double>::infinity();   // until it is through
  double whole = std::numeric_limits<double>::infinity();  // for all of its state
};

/// Returns the pace of a download that has come from `before` to where it is now in this time. One that does not say
/// how much there is has as much before it as behind.
DownloadPace pace_of(std::uint64_t before, const DownloadProgress& now, Duration took) {
  const std::uint64_t done = now.bytes_done, left = now.bytes_total > done ? now.bytes_total - done : done;
  if (done <= before) return {};
  const double each = to_seconds(took) / static_cast<double>(done - before);
  return {each * static_cast<double>(left), each * static_cast<double>(done + left)};
}

Task<DownloadPace> look_at_pace(Runtime& runtime, const DownloadReport& report) {
  const std::uint64_t before = report.progress.bytes_done;
  const TimePoint begin = runtime.now();
  do co_await runtime.sleep_for(kLookPeriod);
  while (report.progress.bytes_done == before && runtime.now() - begin < kSilence);
  co_return pace_of(before, report.progress, runtime.now() - begin);
}

}  // namespace

Task<FasterDonor> await_faster_donor(Dht& dht, PeerId donor, std::deque<PeerId> others, PieceSource source,
                                     const DownloadReport& report, Deadline deadline, DonorPaces& paces) {
  Runtime& runtime = dht.runtime();
  for (;;) {
    const DownloadPace pace = co_await look_at_pace(runtime, report);
    if (pace.left <= kNotWorthwhile) continue;
    const double remaining = to_seconds(deadline.remaining(runtime.now()));
    const bool too_late = pace.left > remaining;
    const auto is_sooner = [&](double seconds) {
      return seconds * kMuchSooner < pace.left || (too_late && seconds < remaining);
    };
    const auto leave_for = [&](const PeerId& peer, std::optional<DonorCall> call) {
      log::info("averaging", "the state comes from {} now: {:.0f} s were left at {}", peer, pace.left, donor);
      paces[donor] = pace.whole;
      return FasterDonor{peer, std::move(call)};
    };
    std::erase_if(others, [&](const PeerId& one) { return report.names(one); });
    const auto known = std::ranges::find_if(others, [&](const PeerId& one) {
      const auto shown = paces.find(one);
      return shown != paces.end() && is_sooner(shown->second);
    });
    if (known != others.end()) co_return leave_for(*known, std::nullopt);
    const auto untried = std::ranges::find_if(others, [&](const PeerId& one) { return !paces.contains(one); });
    if (untried == others.end()) continue;
    const PeerId peer = *untried;
    others.erase(untried);
    auto trial = co_await within(runtime, runtime.after(kTrialTime), try_donor(dht, peer, source), "trial of a donor");
    if (report.names(peer)) continue;  // it has helped meanwhile
    if (!trial) {
      if (trial.error() == transport::Errc::protocol_not_supported && too_late) co_return leave_for(peer, std::nullopt);
      continue;
    }
    paces[peer] = trial->seconds;
    others.push_back(peer);
    if (is_sooner(trial->seconds)) co_return leave_for(peer, std::move(trial->call));
  }
}

}  // namespace cohive::averaging
