#include "progress_entry.hpp"

#include <algorithm>

#include "cohive/train/progress_tracker.hpp"

namespace cohive::train {
namespace {

constexpr double kMaxPlausible = 1e15;
// Seconds that a report is believed, however late it expires, and that the clock of its peer may be ahead.
constexpr double kLongestReport = 600, kMostAhead = 120;

}  // namespace

std::optional<ProgressEntry> read_entry(const msgpack::Value& subkey, const msgpack::Value& value, double target) {
  const auto* marker = subkey.get_if<msgpack::Bin>();
  const auto* map = value.get_if<msgpack::Map>();
  if (!marker || !map) return std::nullopt;
  const auto *epoch = map->find("epoch"), *samples = map->find("samples_accumulated"),
             *rate = map->find("samples_per_second"), *time = map->find("time"), *client = map->find("client_mode");
  if (!epoch || !samples || !rate || !time || !client) return std::nullopt;
  const auto* rate_value = rate->get_if<double>();
  const auto* time_value = time->get_if<double>();
  const auto* client_value = client->get_if<bool>();
  if (!epoch->as_uint() || !samples->as_uint() || !rate_value || !time_value || !client_value) return std::nullopt;
  if (!(*rate_value >= 0 && *rate_value < kMaxPlausible) || *epoch->as_uint() > kMostEpochs) return std::nullopt;
  // No trainer does more than a whole batch: a larger claim counts as one.
  const double done = std::min(static_cast<double>(*samples->as_uint()), target);
  ProgressEntry entry{marker->data, *epoch->as_uint(), done, *rate_value, *time_value, *client_value};
  const auto* peer = map->find("peer_id");
  const auto* bytes = peer ? peer->get_if<msgpack::Bin>() : nullptr;
  if (bytes && !entry.is_sum()) entry.peer = PeerId::from_bytes(as_bytes(bytes->data));
  return entry;
}

bool is_timely(double time, double now) {
  return now - time <= kLongestReport && time - now <= kMostAhead;
}

msgpack::Value entry_value(const PeerId& peer, std::uint64_t epoch, double samples, double samples_per_second,
                           double time, bool client) {
  using msgpack::Value;
  return msgpack::Map{{{"peer_id", Value::bin(peer.bytes())},
                       {"epoch", epoch},
                       {"samples_accumulated", static_cast<std::uint64_t>(std::max(0.0, samples))},
                       {"samples_per_second", samples_per_second},
                       {"time", time},
                       {"client_mode", client}}};
}

}  // namespace cohive::train
