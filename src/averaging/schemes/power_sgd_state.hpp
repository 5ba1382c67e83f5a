// What a PowerSgd keeps from round to round.
#pragma once

#include <mutex>

#include "averaging/tensors/zeroed.hpp"
#include "cohive/averaging/power_sgd.hpp"
#include "cohive/codec/residuals.hpp"
#include "low_rank.hpp"

namespace cohive::averaging {

/// A tensor of the schema that is compressed.
struct CompressedTensor {
  std::size_t index = 0;  ///< in the schema
  MatrixShape shape;
};

/// The factors Q of all compressed tensors, each as rank rows; does not change once it is made.
using FactorSet = std::vector<ZeroedFloats>;
using ResidualSet = std::vector<codec::Residuals>;

struct PowerSgd::State {
  State(std::span<const TensorInfo> schema, const PowerSgdOptions& options);

  /// Any thread, but not the loop's: the first call computes them.
  std::shared_ptr<const FactorSet> factors();
  void replace_factors(std::shared_ptr<const FactorSet> replacement);

  /// As it travels: a row for each column of the tensor.
  codec::Shape shape_of_factor(std::size_t number) const;
  codec::Shape shape_of_residual(std::size_t number) const;

  const std::size_t rank;
  std::vector<CompressedTensor> compressed;  // in the order of the schema
  std::vector<std::size_t> indices;          // of `compressed`
  std::vector<std::size_t> others;           // indices of the tensors that are averaged as they are

  // Loop thread; a round keeps the set that it works on. Null: nothing is owed.
  std::shared_ptr<ResidualSet> residuals;

 private:
  std::mutex mutex_;
  std::shared_ptr<const FactorSet> factors_;
};

/// Runs a round. `state` is kept while it lasts.
Task<Result<>> run_power_sgd(std::shared_ptr<PowerSgd::State> state, RoundContext& round);

}  // namespace cohive::averaging
