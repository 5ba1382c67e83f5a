// Statistics of an optimizer that peers or files have sent, before a step draws roots of them. A codec that rounds may
// leave a square a little below zero, or nothing of it while the mean beside it stays, and peers send anything.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "cohive/optim/passes.hpp"
#include "cohive/optim/step.hpp"

namespace cohive::train {

/// Tells whether a statistic is a sum or a mean of squares.
constexpr bool is_of_squares(std::string_view name) {
  return name == "exp_avg_sq" || name == "max_exp_avg_sq" || name == "square_avg" || name == "sum" ||
         name == "acc_delta";
}

/// A mean of gradients, and the mean of their squares beside it.
struct Moments {
  std::string_view mean, squares;
  double most;  ///< of mean^2 / squares, whatever the gradients were; Adam's is below 1 / (1 - beta2)
};
inline constexpr std::array kMoments = {Moments{"exp_avg", "exp_avg_sq", 1e6}, Moments{"grad_avg", "square_avg", 1}};

/// Returns which statistic it is by its name in checkpoints: optimizer.<number>.<statistic>.
constexpr std::string_view statistic_of(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

/// By these names.
using StatisticViews = std::map<std::string, optim::View, std::less<>>;

/// Tells whether an average may take the place of a statistic. A small square of which the group's codec has left
/// nothing stays.
inline bool is_usable_average(std::string_view name, float average) {
  if (name == "step") return average >= 0 && average <= optim::kMostSteps;
  return std::isfinite(average) && (average > 0 || !is_of_squares(name));
}

/// Has the averages of a round, where they are usable, take the place of a statistic.
/// \param changes  what the round has changed comes in place of averages
inline void take_average(std::string_view name, std::span<const float> averages, bool changes,
                         std::span<float> statistic) {
  for (std::size_t i = 0; i < statistic.size(); ++i) {
    const float average = changes ? statistic[i] + averages[i] : averages[i];
    if (is_usable_average(name, average)) statistic[i] = average;
  }
}

/// Raises squares to 0, and sets a mean to 0 where no gradients have such squares.
/// \param mean  empty: there is none
inline void make_usable(optim::View squares, optim::View mean, double most) {
  std::array<double, 1024> square, value;  // of any dtype
  for (std::size_t begin = 0; begin < squares.size(); begin += square.size()) {
    const std::size_t count = std::min(square.size(), squares.size() - begin);
    const auto some_squares = std::span(square).first(count), some_values = std::span(value).first(count);
    optim::copy(squares.sub(begin, count), some_squares);
    if (!mean.empty()) optim::copy(mean.sub(begin, count), some_values);
    for (std::size_t i = 0; i < count; ++i) {
      square[i] = std::max(square[i], 0.0);
      if (!mean.empty() && value[i] * value[i] > square[i] * most) value[i] = 0;
    }
    optim::copy(std::span<const double>(some_squares), squares.sub(begin, count));
    if (!mean.empty()) optim::copy(std::span<const double>(some_values), mean.sub(begin, count));
  }
}

/// Does so for all statistics of an optimizer.
inline void make_usable(const StatisticViews& statistics) {
  for (const auto& [name, squares] : statistics) {
    const std::string_view statistic = statistic_of(name);
    if (!is_of_squares(statistic)) continue;
    const auto moments = std::ranges::find(kMoments, statistic, &Moments::squares);
    const auto mean =
        moments == kMoments.end()
            ? statistics.end()
            : statistics.find(name.substr(0, name.size() - statistic.size()) + std::string(moments->mean));
    const bool fits = mean != statistics.end() && mean->second.size() == squares.size();
    make_usable(squares, fits ? mean->second : optim::View(), fits ? moments->most : 0);
  }
}

}  // namespace cohive::train
