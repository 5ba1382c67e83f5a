#include "metrics_record.hpp"

#include <cmath>
#include <limits>

#include "cohive/core/log.hpp"
#include "cohive/dht/schema.hpp"
#include "dht/detail/later_expiration.hpp"

namespace cohive::train {
namespace {

constexpr double kMetricsLifetime = 600;  // seconds: monitors look seldom
constexpr double kTellers = 128;

double draw_of(const PeerId& trainer) {
  return static_cast<double>(std::hash<PeerId>()(trainer)) /
         static_cast<double>(std::numeric_limits<std::size_t>::max());
}

}  // namespace

MetricsRecord::MetricsRecord(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, const std::string& run_id,
                             TaskGroup& tasks)
    : dht_(dht),
      key_(std::move(key)),
      record_key_(run_id + "_metrics"),
      drawn_(draw_of(dht.host().id())),
      tasks_(tasks) {
  dht_.add_validator(std::make_shared<dht::SchemaValidator>(dht::training_metrics_schema(), run_id));
}

void MetricsRecord::add_samples(double samples) {
  const std::lock_guard lock(mutex_);
  sums_.samples += samples;
}

void MetricsRecord::forget_samples() {
  const std::lock_guard lock(mutex_);
  sums_.samples = 0;
}

void MetricsRecord::add_loss(double loss) {
  if (!std::isfinite(loss)) return;
  const std::lock_guard lock(mutex_);
  sums_.loss += loss;
  ++sums_.losses;
}

void MetricsRecord::publish(std::uint64_t step, double samples_per_second, std::size_t trainers) {
  Sums sums;
  {
    const std::lock_guard lock(mutex_);
    sums = std::exchange(sums_, Sums());
  }
  if (sums.losses == 0 || drawn_ * static_cast<double>(trainers) > kTellers) return;
  msgpack::Value value = msgpack::Map{{{"step", step},
                                       {"samples_per_second", samples_per_second},
                                       {"samples_accumulated", static_cast<std::uint64_t>(std::max(0.0, sums.samples))},
                                       {"loss", sums.loss},
                                       {"mini_steps", sums.losses}}};
  const double expiration = dht::later_expiration(dht_.now() + kMetricsLifetime, newest_expiration_);
  tasks_.spawn(store(dht_, record_key_, msgpack::Bin{key_->ownership_marker()}, std::move(value), expiration),
               "tell metrics");
}

Task<void> MetricsRecord::store(Dht& dht, std::string key, msgpack::Bin subkey, msgpack::Value value,
                                double expiration) {
  const auto stored = co_await dht.store(std::move(key), std::move(subkey), std::move(value), expiration);
  if (!stored) log::debug("train", "monitors do not hear of this epoch: {}", stored.error());
}

}  // namespace cohive::train
