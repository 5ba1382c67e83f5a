// Works on blocks of columns: the rows are the senders' values of these columns, in a matrix that stays in the cache.
#include "robust.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "averaging/detail/part_math.hpp"
#include "cohive/core/log.hpp"
#include "core/detail/wide.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kMatrix = 64 * 1024;                   // values
constexpr std::size_t kMinColumns = 64, kMaxColumns = 1024;  // multiples of kSideBySide
constexpr std::size_t kSideBySide = 16;                      // sums that run side by side
constexpr double kLeastWeight = 1e-6, kMostWeight = 1e15;    // of the median; the most: of a mean that bears no liars

using Comparators = std::vector<std::pair<std::size_t, std::size_t>>;

/// Batcher's odd-even merge sort for any number of rows: a fixed list of exchanges that has no branch per value.
Comparators sorting_network(std::size_t rows) {
  Comparators network;
  for (std::size_t p = 1; p < rows; p *= 2)
    for (std::size_t k = p; k >= 1; k /= 2)
      for (std::size_t j = k % p; j + k < rows; j += 2 * k)
        for (std::size_t i = 0; i < std::min(k, rows - j - k); ++i)
          if ((i + j) / (2 * p) == (i + j + k) / (2 * p)) network.emplace_back(i + j, i + j + k);
  return network;
}

COHIVE_WIDE void exchange(float* lower, float* upper, std::size_t columns) {
  for (std::size_t i = 0; i < columns; ++i) {
    const float a = lower[i], b = upper[i];
    lower[i] = a < b ? a : b;
    upper[i] = a < b ? b : a;
  }
}

COHIVE_WIDE void add_kept(const float* values, const float* low, const float* high, float weight, float* sum,
                          float* weights, std::size_t columns) {
  for (std::size_t i = 0; i < columns; ++i) {
    const bool kept = (values[i] >= low[i]) & (values[i] <= high[i]);
    const float counted = kept ? weight : 0.0f;
    sum[i] += counted * values[i];
    weights[i] += counted;
  }
}

COHIVE_WIDE void divide_within(const float* weights, const float* low, const float* high, float* sum,
                               std::size_t columns) {
  for (std::size_t i = 0; i < columns; ++i) {
    const float mean = sum[i] / weights[i];  // rounding must not carry it out of the range
    const float above = mean > low[i] ? mean : low[i];
    sum[i] = above < high[i] ? above : high[i];
  }
}

COHIVE_WIDE void middle(const float* low, const float* high, float* out, std::size_t columns) {
  for (std::size_t i = 0; i < columns; ++i) out[i] = 0.5f * low[i] + 0.5f * high[i];
}

COHIVE_WIDE double squared_distance(const float* values, const float* centre, std::size_t columns) {
  float lanes[kSideBySide] = {};
  std::size_t i = 0;
  for (; i + kSideBySide <= columns; i += kSideBySide)
    for (std::size_t lane = 0; lane < kSideBySide; ++lane) {
      const float difference = values[i + lane] - centre[i + lane];
      lanes[lane] += difference * difference;
    }
  for (; i < columns; ++i) lanes[0] += (values[i] - centre[i]) * (values[i] - centre[i]);
  double sum = 0;
  for (float lane : lanes) sum += static_cast<double>(lane);
  return sum;
}

COHIVE_WIDE void add_difference_to(const float* values, const float* centre, float factor, float* step,
                                   std::size_t columns) {
  for (std::size_t i = 0; i < columns; ++i) step[i] += factor * (values[i] - centre[i]);
}

COHIVE_WIDE double squared_norm(const float* values, std::size_t columns) {
  float lanes[kSideBySide] = {};
  std::size_t i = 0;
  for (; i + kSideBySide <= columns; i += kSideBySide)
    for (std::size_t lane = 0; lane < kSideBySide; ++lane) lanes[lane] += values[i + lane] * values[i + lane];
  for (; i < columns; ++i) lanes[0] += values[i] * values[i];
  double sum = 0;
  for (float lane : lanes) sum += static_cast<double>(lane);
  return sum;
}

COHIVE_WIDE void add_scaled_to(const float* values, float factor, float* sum, std::size_t columns) {
  for (std::size_t i = 0; i < columns; ++i) sum[i] += factor * values[i];
}

/// Of what a sender has left out its value is 0.
COHIVE_WIDE void add_sent(const float* values, float factor, float weight, float* sum, float* weights,
                          std::size_t columns) {
  for (std::size_t i = 0; i < columns; ++i) {
    sum[i] += weight * (factor * values[i]);
    weights[i] += values[i] != 0 ? weight : 0.0f;
  }
}

COHIVE_WIDE void divide_where_sent(const float* weights, float* sum, std::size_t columns) {
  for (std::size_t i = 0; i < columns; ++i) sum[i] = weights[i] > 0 ? sum[i] / weights[i] : 0.0f;
}

COHIVE_WIDE void add_to(const float* step, float* centre, std::size_t columns) {
  for (std::size_t i = 0; i < columns; ++i) centre[i] += step[i];
}

/// The votes' values of some columns, a row for each, and room to sort them.
class Matrix {
 public:
  explicit Matrix(const std::vector<Vote>& votes)
      : votes_(votes),
        stride_(std::clamp(kMatrix / votes.size() / kMinColumns * kMinColumns, kMinColumns, kMaxColumns)),
        rows_(votes.size() * stride_) {}

  std::size_t stride() const { return stride_; }
  std::size_t votes() const { return votes_.size(); }
  const float* row(std::size_t vote) const { return rows_.data() + vote * stride_; }
  bool read(std::size_t first, std::size_t columns) {
    for (std::size_t i = 0; i < votes_.size(); ++i)
      if (!votes_[i].read(first, {rows_.data() + i * stride_, columns})) return false;
    return true;
  }
  /// Ascending in each column.
  void sort(std::size_t columns) {
    if (sorted_.empty()) {  // only a trimmed mean sorts
      sorted_.resize(rows_.size());
      network_ = sorting_network(votes_.size());
    }
    for (std::size_t i = 0; i < votes_.size(); ++i) std::copy_n(row(i), columns, sorted_.data() + i * stride_);
    for (const auto& [lower, upper] : network_)
      exchange(sorted_.data() + lower * stride_, sorted_.data() + upper * stride_, columns);
  }
  const float* sorted(std::size_t rank) const { return sorted_.data() + rank * stride_; }

 private:
  const std::vector<Vote>& votes_;
  std::size_t stride_;
  std::vector<float> rows_, sorted_;
  Comparators network_;
};

/// Relative to the median weight, which liars that are fewer than half cannot raise above every honest one.
std::vector<float> counted_weights(const std::vector<Vote>& votes, double most = 1.0) {
  std::vector<double> sorted;
  for (const auto& vote : votes) sorted.push_back(vote.weight);
  const auto median = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), median, sorted.end());
  std::vector<float> weights;
  for (const auto& vote : votes)
    weights.push_back(static_cast<float>(std::clamp(vote.weight / *median, kLeastWeight, most)));
  return weights;
}

bool trimmed_mean(const TrimmedMean& how, const std::vector<Vote>& votes, std::span<float> out) {
  const auto weights = counted_weights(votes);
  const std::size_t trimmed = trimmed_at_each_end(how, votes.size());
  Matrix matrix(votes);
  std::vector<float> counted(matrix.stride());
  for (std::size_t first = 0; first < out.size(); first += matrix.stride()) {
    const std::size_t columns = std::min(matrix.stride(), out.size() - first);
    if (!matrix.read(first, columns)) return false;
    matrix.sort(columns);
    // Equals of the outermost votes that count do count too: which of them is left out makes no difference to values.
    const float* low = matrix.sorted(trimmed);
    const float* high = matrix.sorted(votes.size() - 1 - trimmed);
    float* sum = out.data() + first;
    std::fill_n(sum, columns, 0.0f);
    std::fill_n(counted.data(), columns, 0.0f);
    for (std::size_t i = 0; i < votes.size(); ++i)
      add_kept(matrix.row(i), low, high, weights[i], sum, counted.data(), columns);
    divide_within(counted.data(), low, high, sum, columns);
  }
  return true;
}

/// One pass over the votes for each iteration, and one more: the distances that clip a step are those from the centre
/// that the step before arrived at, and are taken while its values are at hand.
bool centered_clip(const CenteredClip& how, const std::vector<Vote>& votes, std::span<float> centre) {
  const auto weights = counted_weights(votes);
  double total = 0;
  for (float weight : weights) total += static_cast<double>(weight);
  std::vector<float> factors(votes.size());
  Matrix matrix(votes);
  std::vector<float> step(matrix.stride());
  for (int pass = 0; pass <= how.iterations; ++pass) {
    std::vector<double> squares(votes.size());
    for (std::size_t first = 0; first < centre.size(); first += matrix.stride()) {
      const std::size_t columns = std::min(matrix.stride(), centre.size() - first);
      float* here = centre.data() + first;
      if (!matrix.read(first, columns)) return false;
      if (pass == 0) {
        matrix.sort(columns);
        middle(matrix.sorted((votes.size() - 1) / 2), matrix.sorted(votes.size() / 2), here, columns);
      } else {
        std::fill_n(step.data(), columns, 0.0f);
        for (std::size_t i = 0; i < votes.size(); ++i)  // infinitely far is nowhere, and 0 times infinity is no number
          if (factors[i] > 0) add_difference_to(matrix.row(i), here, factors[i], step.data(), columns);
        add_to(step.data(), here, columns);
      }
      if (pass < how.iterations)
        for (std::size_t i = 0; i < votes.size(); ++i) squares[i] += squared_distance(matrix.row(i), here, columns);
    }
    for (std::size_t i = 0; i < votes.size(); ++i) {
      const double distance = std::sqrt(squares[i]);
      const double clip = distance > how.radius ? how.radius / distance : 1.0;
      factors[i] = static_cast<float>(static_cast<double>(weights[i]) / total * clip);
    }
  }
  return all_finite(centre);
}

/// By what each vote is to be scaled so that none is longer than `factor` times the median norm; none where a vote
/// cannot be read.
std::optional<std::vector<double>> clips(Matrix& matrix, double factor, std::size_t length) {
  std::vector<double> norms(matrix.votes());
  for (std::size_t first = 0; first < length; first += matrix.stride()) {
    const std::size_t columns = std::min(matrix.stride(), length - first);
    if (!matrix.read(first, columns)) return std::nullopt;
    for (std::size_t i = 0; i < norms.size(); ++i) norms[i] += squared_norm(matrix.row(i), columns);
  }
  for (double& norm : norms) norm = std::sqrt(norm);
  auto sorted = norms;
  const auto median = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), median, sorted.end());
  const double longest = factor * *median;
  for (double& norm : norms) norm = norm > longest ? longest / norm : 1.0;
  return norms;
}

/// Two passes over the votes: their norms, then their sum.
bool clipped_mean(const ClippedMean& how, const std::vector<Vote>& votes, std::span<float> out) {
  const auto weights = counted_weights(votes, how.factor);
  double total = 0;
  for (float weight : weights) total += static_cast<double>(weight);
  Matrix matrix(votes);
  const auto scales = clips(matrix, how.factor, out.size());
  if (!scales) return false;
  std::vector<float> factors;
  for (std::size_t i = 0; i < votes.size(); ++i)
    factors.push_back(static_cast<float>(static_cast<double>(weights[i]) / total * (*scales)[i]));
  std::ranges::fill(out, 0.0f);
  for (std::size_t first = 0; first < out.size(); first += matrix.stride()) {
    const std::size_t columns = std::min(matrix.stride(), out.size() - first);
    if (!matrix.read(first, columns)) return false;
    for (std::size_t i = 0; i < votes.size(); ++i)
      if (factors[i] > 0) add_scaled_to(matrix.row(i), factors[i], out.data() + first, columns);
  }
  return all_finite(out);
}

bool mean_of_senders(const MeanOfSenders& how, const std::vector<Vote>& votes, std::span<float> out) {
  const auto weights = counted_weights(votes, how.clip > 0 ? how.clip : kMostWeight);
  Matrix matrix(votes);
  std::vector<double> scales(votes.size(), 1.0);
  if (how.clip > 0) {
    auto clipped = clips(matrix, how.clip, out.size());
    if (!clipped) return false;
    scales = std::move(*clipped);
  }
  std::vector<float> counted(matrix.stride());
  std::ranges::fill(out, 0.0f);
  for (std::size_t first = 0; first < out.size(); first += matrix.stride()) {
    const std::size_t columns = std::min(matrix.stride(), out.size() - first);
    if (!matrix.read(first, columns)) return false;
    std::ranges::fill(counted, 0.0f);
    for (std::size_t i = 0; i < votes.size(); ++i)
      if (scales[i] > 0)
        add_sent(matrix.row(i), static_cast<float>(scales[i]), weights[i], out.data() + first, counted.data(), columns);
    divide_where_sent(counted.data(), out.data() + first, columns);
  }
  return all_finite(out);
}

}  // namespace

bool bears_liars(const Aggregation& how) {
  if (const auto* mean = std::get_if<MeanOfSenders>(&how)) return mean->clip > 0;
  return !std::holds_alternative<Mean>(how);
}

std::size_t trimmed_at_each_end(const TrimmedMean& how, std::size_t votes) {
  if (votes < 3) return 0;
  const double wanted = how.fraction * static_cast<double>(votes);
  constexpr double kRounding = 1e-9;  // 0.1 * 30 is a little more than 3
  return std::min(static_cast<std::size_t>(std::ceil(wanted - kRounding)), (votes - 1) / 2);
}

std::string description(const Aggregation& how) {
  if (const auto* trimmed = std::get_if<TrimmedMean>(&how)) return log::format("trimmed-mean {}", trimmed->fraction);
  if (const auto* clip = std::get_if<CenteredClip>(&how))
    return log::format("centered-clip {} {}", clip->radius, clip->iterations);
  if (const auto* clip = std::get_if<ClippedMean>(&how)) return log::format("clipped-mean {}", clip->factor);
  if (const auto* mean = std::get_if<MeanOfSenders>(&how)) return log::format("mean-of-senders {}", mean->clip);
  return "mean";
}

bool aggregate(const Aggregation& how, std::vector<Vote> votes, std::span<float> out) {
  std::erase_if(votes, [](const Vote& vote) { return !(vote.weight > 0); });
  if (votes.empty()) return false;
  std::sort(votes.begin(), votes.end(), [](const Vote& a, const Vote& b) { return a.sender < b.sender; });
  if (const auto* trimmed = std::get_if<TrimmedMean>(&how)) return trimmed_mean(*trimmed, votes, out);
  if (const auto* clip = std::get_if<CenteredClip>(&how)) return centered_clip(*clip, votes, out);
  if (const auto* clip = std::get_if<ClippedMean>(&how)) return clipped_mean(*clip, votes, out);
  if (const auto* mean = std::get_if<MeanOfSenders>(&how)) return mean_of_senders(*mean, votes, out);
  return false;
}

}  // namespace cohive::averaging
