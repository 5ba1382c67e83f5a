#include "history.hpp"

#include <algorithm>
#include <array>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log_output.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/core/status.hpp"
#include "json_number.hpp"

namespace cohive::train {
namespace {

using nlohmann::json;

constexpr std::array kRoundCauses = {"no_group",   "members_left", "nobody_reduces", "bad_partition", "refused",
                                     "not_finite", "cancelled",    "timeout",        "missed",        "other"};
constexpr std::array kDownloadCauses = {"no_donor", "bad_state", "timeout", "other"};

Counter failed_rounds(const RunMetrics& metrics, const std::string& what, const std::string& cause) {
  return metrics.counter("cohive_train_failed_rounds_total", "Rounds that averaged nothing, by cause.",
                         {{"averager", what}, {"cause", cause}});
}
Counter failed_downloads(const RunMetrics& metrics, const std::string& cause) {
  return metrics.counter("cohive_train_failed_downloads_total", "Downloads of the state that failed, by cause.",
                         {{"cause", cause}});
}

template <class T>
void push_bounded(std::deque<T>& list, T value, std::size_t most) {
  if (list.size() >= most) list.pop_front();
  list.push_back(std::move(value));
}

std::vector<std::string> texts_of(const std::vector<PeerId>& peers) {
  std::vector<std::string> texts;
  for (const PeerId& peer : peers) texts.push_back(peer.text());
  return texts;
}

}  // namespace

std::string cause_of_round_failure(const Error& error) {
  using averaging::Errc;
  if (error == Errc::no_group) return "no_group";
  if (error == Errc::members_left) return "members_left";
  if (error == Errc::nobody_reduces) return "nobody_reduces";
  if (error == Errc::bad_partition) return "bad_partition";
  if (error == Errc::refused) return "refused";
  if (error == Errc::not_finite) return "not_finite";
  if (error == Errc::round_cancelled || error == Errc::left) return "cancelled";
  if (error == cohive::Errc::timeout) return "timeout";
  return "other";
}

std::string cause_of_download_failure(const Error& error) {
  using averaging::Errc;
  if (error == Errc::no_donor) return "no_donor";
  if (error == Errc::bad_state) return "bad_state";
  if (error == cohive::Errc::timeout) return "timeout";
  return "other";
}

// ---- Rounds and downloads

/// Counters begin with 0, so that a reader can tell a zero from a counter that is not there.
History::History(Runtime& runtime, RunMetrics metrics)
    : runtime_(runtime), metrics_(std::move(metrics)), epoch_begin_(runtime.now()) {
  for (const char* cause : kDownloadCauses) failed_downloads(metrics_, cause);
}
void History::count_failures_of(const std::string& what) {
  for (const char* cause : kRoundCauses) failed_rounds(metrics_, what, cause);
}

void History::round_averaged(const std::string& what, std::shared_ptr<const averaging::RoundReport> report) {
  const auto& result = *report;
  const bool whole = result.failed_reducers.empty() && result.lost_senders.empty();
  Round round{.time = runtime_.wall_time(), .what = what, .outcome = whole ? "ok" : "partial", .cause = {}};
  if (!whole)
    round.message = log::format("{} of {} parts kept their local values, {} senders were left out", result.parts_failed,
                                result.parts_total, result.lost_senders.size());
  round.report = std::move(report);
  keep(std::move(round));
}

void History::round_failed(const std::string& what, const std::string& cause, const std::string& sentence) {
  Round round{.time = runtime_.wall_time(), .what = what, .outcome = cause == "missed" ? "missed" : "failed"};
  round.cause = cause;
  round.message = sentence;
  round.report = std::make_shared<const averaging::RoundReport>();
  keep(std::move(round));
  failed_rounds(metrics_, what, cause).increment();
  Failures::of(runtime_).note("round", cause, what + ": " + sentence);
  log::write(log::Level::info, "train", {{"event", "round_failed"}, {"averager", what}, {"cause", cause}},
             "averaging " + what + ": " + sentence);
}

void History::download_failed(const Error& error) {
  const std::string cause = cause_of_download_failure(error);
  failed_downloads(metrics_, cause).increment();
  Failures::of(runtime_).note("download", cause, error.message());
  log::write(log::Level::warn, "train", {{"event", "download_failed"}, {"cause", cause}},
             log::format("no state downloaded: {}", error));
}

void History::keep(Round round) {
  push_bounded(rounds_, std::move(round), kRounds);
}

std::string History::rounds() const {
  auto list = json::array();
  for (const Round& round : rounds_) {
    const auto& report = *round.report;
    std::vector<std::string> members;
    for (const auto& member : report.group) members.push_back(member.peer.text());
    list.push_back({{"time", round.time},
                    {"what", round.what},
                    {"outcome", round.outcome},
                    {"cause", round.cause},
                    {"message", round.message},
                    {"group_id", to_hex(as_bytes(report.group_id))},
                    {"members", members},
                    {"lost", texts_of(report.lost())},
                    {"matchmaking_seconds", to_seconds(report.matchmaking)},
                    {"allreduce_seconds", to_seconds(report.allreduce)},
                    {"bytes_sent", report.bytes_sent},
                    {"bytes_received", report.bytes_received}});
  }
  return list.dump(-1, ' ', false, json::error_handler_t::replace);
}

// ---- Epochs

double History::epoch_ended(const Epoch& epoch) {
  const TimePoint now = runtime_.now();
  const double seconds = to_seconds(now - std::exchange(epoch_begin_, now));
  const double waited = epoch.waited - std::exchange(waited_, epoch.waited);
  push_bounded(epochs_, {epoch, runtime_.wall_time(), seconds, waited}, kEpochs);
  return seconds;
}

std::string History::epochs() const {
  auto list = json::array();
  for (const auto& [epoch, time, seconds, waited] : epochs_)
    list.push_back({{"epoch", epoch.number},
                    {"time", time},
                    {"seconds", seconds},
                    {"wait_seconds", waited},
                    {"samples", finite(epoch.samples)},
                    {"samples_per_second", finite(epoch.samples_per_second)},
                    {"loss", finite(epoch.loss)},
                    {"peers", epoch.peers}});
  return list.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace cohive::train
