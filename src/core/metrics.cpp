#include "cohive/core/metrics.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "cohive/core/names.hpp"

namespace cohive {
namespace {

/// One value that is no UTF-8 would cost the whole scrape.
MetricLabels readable(MetricLabels labels) {
  for (auto& [name, value] : labels) value = printable_text(value);
  return labels;
}

}  // namespace

// A default-constructed instrument measures nothing.
void Counter::increment(double by) const {
  if (counter_) counter_->Increment(by);
}
double Counter::value() const {
  return counter_ ? counter_->Value() : 0;
}
void Gauge::set(double value) const {
  if (gauge_) gauge_->Set(value);
}
void Gauge::add(double by) const {
  if (gauge_) gauge_->Increment(by);
}
double Gauge::value() const {
  return gauge_ ? gauge_->Value() : 0;
}
void Histogram::observe(double value) const {
  if (histogram_) histogram_->Observe(value);
}

struct Metrics::Impl {
  // Asking twice for a family or a label set must find the first one.
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

Counter Metrics::counter(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return Counter(&prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry).Add(readable(labels)));
}

Gauge Metrics::gauge(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return Gauge(&prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry).Add(readable(labels)));
}

Histogram Metrics::histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                             const MetricLabels& labels) {
  auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(impl_->registry);
  return Histogram(&family.Add(readable(labels), bounds));
}

std::string Metrics::text() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace cohive
