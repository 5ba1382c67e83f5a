// Tensors as a trainer hands them to a round: in place or written elsewhere, as values or as differences, scaled on the
// way; and what must hold of them afterwards.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohive/averaging/host_parts.hpp"

namespace cohive::averaging {

class HandedTensors {
 public:
  enum class Way { in_place, elsewhere, differences };

  static std::vector<TensorInfo> infos_of(const std::vector<std::vector<float>>& values) {
    std::vector<TensorInfo> infos;
    for (const auto& tensor : values) infos.push_back({{static_cast<std::uint32_t>(tensor.size())}});
    return infos;
  }

  /// The round sees `values`, whose memory holds twice that until it uses them.
  HandedTensors(Runtime& runtime, Way way, std::vector<std::vector<float>>& values, ResidualsPtr residuals)
      : way_(way), values_(values), reported_(values.size()) {
    std::vector<TensorSpan> memory;
    for (std::size_t t = 0; t < values.size(); ++t) {
      for (float& value : values[t]) value *= 2;
      results_.emplace_back(values[t].size(), kUnwritten);
      reported_[t].resize(values[t].size());
    }
    for (std::size_t t = 0; t < values.size(); ++t)
      way == Way::in_place ? memory.emplace_back(values[t]) : memory.emplace_back(values[t], results_[t]);
    HostPartsOptions options{.differences = way == Way::differences, .factor = 0.5f, .residuals = std::move(residuals)};
    options.on_result = [this](const StretchResult& result) {
      for (std::size_t i = 0; i < result.stretch.length; ++i)
        ++reported_[result.stretch.tensor][result.stretch.offset + i];
    };
    parts_ = std::make_shared<HostParts>(runtime, infos_of(values), std::move(memory), std::move(options));
  }
  const std::shared_ptr<HostParts>& parts() const { return parts_; }
  /// Tells whether take_results() makes of an average the average itself, without the rounding of a sum.
  bool is_exact() const { return way_ != Way::differences; }

  /// After the end: makes `values` what the round has left, and says what is wrong.
  std::optional<std::string> take_results() {
    if (parts_.use_count() != 1) return "the tensors have not been given back";
    for (const auto& tensor : reported_)
      for (int times : tensor)
        if (times != 1) return "a value was reported " + std::to_string(times) + " times";
    if (way_ == Way::in_place) return std::nullopt;
    for (std::size_t t = 0; t < values_.size(); ++t) {
      for (std::size_t i = 0; i < values_[t].size(); ++i) {
        if (results_[t][i] == kUnwritten) return "a value was not written";
        values_[t][i] = way_ == Way::differences ? values_[t][i] + results_[t][i] : results_[t][i];
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr float kUnwritten = 12345;

  Way way_;
  std::vector<std::vector<float>>& values_;
  std::vector<std::vector<float>> results_;
  std::vector<std::vector<int>> reported_;
  std::shared_ptr<HostParts> parts_;
};

}  // namespace cohive::averaging
