// LearningProblem: simulated trainers learn a linear model of normal numbers, whose gradients cost little.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace cohive::sim {

using Random = std::mt19937_64;

/// Standard normal numbers, those of std::normal_distribution, which takes logarithms of the generator's range for
/// each.
class Normal {
 public:
  double operator()(Random& random) {
    if (saved_) return *std::exchange(saved_, std::nullopt);
    double x = 0, y = 0, square = 0;
    do {
      x = 2 * unit(random) - 1;
      y = 2 * unit(random) - 1;
      square = x * x + y * y;
    } while (square > 1 || square == 0);
    const double scale = std::sqrt(-2 * std::log(square) / square);
    saved_ = x * scale;
    return y * scale;
  }

 private:
  static double unit(Random& random) {
    constexpr double kNumbers = 0x1p64;
    return std::min(static_cast<double>(random()) / kNumbers, std::nextafter(1.0, 0.0));
  }
  std::optional<double> saved_;
};

/// y = x w + noise, with x normal.
class LearningProblem {
 public:
  LearningProblem(std::size_t features, double noise, std::uint64_t seed) : noise_(noise) {
    Random random(seed);
    for (std::size_t i = 0; i < features; ++i) truth_.push_back(static_cast<float>(normal_(random)));
  }
  /// The mean gradient of the square error over a batch.
  void gradient(std::span<const float> weights, std::int64_t batch, Random& random, std::span<float> out) {
    std::ranges::fill(out, 0.0f);
    std::vector<float> x(weights.size());
    for (std::int64_t sample = 0; sample < batch; ++sample) {
      double error = noise_ * normal_(random);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(normal_(random));
        error += x[i] * (weights[i] - truth_[i]);
      }
      for (std::size_t i = 0; i < x.size(); ++i)
        out[i] += static_cast<float>(2 * error * x[i] / static_cast<double>(batch));
    }
  }
  /// Returns by how much a model's expected error exceeds the noise.
  double loss(std::span<const float> weights) const {
    double sum = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) sum += std::pow(weights[i] - truth_[i], 2);
    return sum;
  }

 private:
  std::vector<float> truth_;
  double noise_;
  Normal normal_;
};

}  // namespace cohive::sim
