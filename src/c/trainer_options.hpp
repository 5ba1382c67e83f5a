// What the caller says about a trainer: the options of its run, its arrays and the layout of its state.
#pragma once

#include "caller_model.hpp"
#include "cohive/train/run_options.hpp"

namespace cohive::c {

struct TrainerOptions {
  train::RunOptions run;
  CallerWays ways;
  std::optional<double> clip_grad_norm;
  std::optional<int> device;  ///< number of the GPU that the model is on
};

/// Reads the options of cohive_trainer_open(). Refuses what cannot be meant.
/// \param parameters  and `beside`: the number of tensors
TrainerOptions read_trainer_options(const char* text, std::size_t parameters, std::size_t beside);

/// The arrays of cohive_trainer_open(). Refuses those that cannot be averaged.
CallerArrays read_arrays(const cohive_tensor* parameters, std::size_t count, const cohive_tensor* beside,
                         std::size_t beside_count);

/// The layout of cohive_trainer_describe(). \param parameters  the memory of the parameters
Layout read_layout(const std::vector<const void*>& parameters, ByteView metadata, const cohive_tensor* state,
                   const char* const* names, std::size_t count, const char* steps, float* const* statistics);

}  // namespace cohive::c
