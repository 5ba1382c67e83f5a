// What goes on with a training, as LibTorch's archives hold it: the optimizer as it saves itself, the epoch, and the
// float32 copies of parameters that an offloaded optimizer has.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace cohive::libtorch {

/// \param masters  the optimizer's own copies of the parameters; none where it steps the model's
void save_training(torch::serialize::OutputArchive& archive, const torch::optim::Optimizer& optimizer,
                   std::uint64_t epoch, const std::vector<torch::Tensor>& masters);

/// Returns the epoch of an archive. Throws std::invalid_argument with a sentence for another archive.
std::uint64_t saved_epoch(torch::serialize::InputArchive& archive);
/// Reads the rest into an optimizer and its copies. Learning rates stay as they are with `keep_rates`. Throws
/// std::invalid_argument with a sentence, and changes nothing, for an archive that does not fit.
void load_training(torch::serialize::InputArchive& archive, torch::optim::Optimizer& optimizer,
                   const std::vector<torch::Tensor>& masters, bool keep_rates);

}  // namespace cohive::libtorch
