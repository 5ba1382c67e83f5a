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
  const double share = bytes > 0 ? static_cast<double>(manifest.bytes) / static_cast<double>(bytes) : 1;
  const double seconds = to_seconds(runtime.now() - begin) * share;
  co_return Trial{std::move(*call), seconds};
}

bool is_liar(const DownloadReport& report, const PeerId& peer) {
  return std::ranges::find(report.liars, peer) != report.liars.end();
}

/// Seconds until a download is through that has come from `before` to where it is now in this time. One that does not
/// say how much there is has as much before it as behind.
double seconds_left(std::uint64_t before, const DownloadProgress& now, Duration took) {
  const std::uint64_t done = now.bytes_done, left = now.bytes_total > done ? now.bytes_total - done : done;
  if (done <= before) return std::numeric_limits<double>::infinity();
  return static_cast<double>(left) / static_cast<double>(done - before) * to_seconds(took);
}

/// Measures the pace of a download, and returns how long it will take yet.
Task<double> look_at_pace(Runtime& runtime, const DownloadReport& report) {
  const std::uint64_t before = report.progress.bytes_done;
  const TimePoint begin = runtime.now();
  do co_await runtime.sleep_for(kLookPeriod);
  while (report.progress.bytes_done == before && runtime.now() - begin < kSilence);
  co_return seconds_left(before, report.progress, runtime.now() - begin);
}

}  // namespace

Task<FasterDonor> await_faster_donor(Dht& dht, std::deque<PeerId> others, PieceSource source,
                                     const DownloadReport& report, Deadline deadline) {
  Runtime& runtime = dht.runtime();
  while (!others.empty()) {
    const double left = co_await look_at_pace(runtime, report);
    if (left <= kNotWorthwhile) continue;
    const PeerId peer = others.front();
    others.pop_front();
    if (is_liar(report, peer)) continue;
    auto trial = co_await within(runtime, runtime.after(kTrialTime), try_donor(dht, peer, source), "trial of a donor");
    if (is_liar(report, peer)) continue;  // it has helped meanwhile
    const bool too_late = left > to_seconds(deadline.remaining(runtime.now()));
    if (trial && trial->seconds * kMuchSooner < left) {
      log::info("averaging", "the state comes from {} now: {:.0f} s there, where {:.0f} s were left", peer,
                trial->seconds, left);
      co_return FasterDonor{peer, std::move(trial->call)};
    }
    if (!trial && trial.error() == transport::Errc::protocol_not_supported && too_late)
      co_return FasterDonor{peer, std::nullopt};
  }
  for (;;) co_await runtime.sleep_for(1h);
}

}  // namespace cohive::averaging
