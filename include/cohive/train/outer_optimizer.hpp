/// \file
/// OuterOptimizer: what a run of local steps averages by (DiLoCo, https://arxiv.org/abs/2311.08105). Every trainer
/// steps by itself, with any optimizer, for hundreds of batches; then the trainers average how far each has come from
/// the parameters that all began with, their anchor, and one step of SGD with momentum leads to the next anchor:
///
///   difference = anchor - parameters       of each trainer, weighted by its samples
///   momentum   = mu * momentum + mean      of all differences
///   anchor     = anchor - lr * (mean + mu * momentum)       as torch.optim.SGD(nesterov=True) has it
///   parameters = anchor                    and the next local steps begin
///
/// In a run that is divided into groups the difference is that of each trainer's anchor from the mean of the parameters
/// of its group, which are what is averaged there (https://arxiv.org/abs/2506.10911).
///
/// A round is an epoch: target_batch_size samples of all trainers, so that a fast one makes more local steps than a
/// slow one; with fragments it averages one of them, and so many epochs are a round of the model
/// (https://arxiv.org/abs/2501.18512). Anchor, momentum and what is averaged are three copies of the parameters in host
/// memory, and two more where the trainer goes on meanwhile; the first two are part of checkpoints, and newcomers
/// download them.
#pragma once

namespace cohive::train {

/// The same for all trainers of a run: those with other settings do not average with one another.
struct OuterOptimizer {
  double lr = 0.7;        ///< above 0; published runs use 0.1 to 1
  double momentum = 0.9;  ///< from 0 to below 1; 0.5 and less where a round is 64 local steps or fewer
  bool nesterov = true;   ///< as PyTorch has it; without effect where momentum is 0
  /// Rounds after which anchors that differ are averaged themselves, the first one apart: a member that dies in a round
  /// leaves the others with anchors that differ in its part.
  int repair_every = 10;
  /// Parts of the model, whole tensors, that are averaged in turn, one in each epoch: the link is used more evenly, for
  /// as many bytes a value. A value is averaged once in so many epochs, so target_batch_size is to be as many times
  /// smaller. 1 to the number of parameters; 64 at most.
  int fragments = 1;
  /// Averages with trainers of OpenDiLoCo (https://github.com/PrimeIntellect-ai/OpenDiLoCo), which are Python
  /// hivemind's with an optimizer of their own: under its names, each trainer with the same weight, and the anchors
  /// after every round. All trainers of a run set it, or none. OpenDiLoCo's count the samples of a round by themselves:
  /// target_batch_size is those of one, times the trainers. States are not shared between the two kinds.
  bool open_diloco = false;
};

}  // namespace cohive::train
