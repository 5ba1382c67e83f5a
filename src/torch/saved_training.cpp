#include "saved_training.hpp"

#include "known_optimizer.hpp"
#include "refuse.hpp"

namespace cohive::libtorch {
namespace {

constexpr const char* kEpoch = "cohive_epoch";
constexpr const char* kOptimizer = "optimizer";
constexpr const char* kMasters = "parameters";

/// An optimizer's statistics and options, to be put back unless what replaces them turns out well.
class Undo {
 public:
  explicit Undo(torch::optim::Optimizer& optimizer) : optimizer_(&optimizer) {
    for (const auto& [key, state] : optimizer.state()) state_[key] = state->clone();
    for (auto& group : optimizer.param_groups()) options_.push_back(group.options().clone());
  }
  Undo(const Undo&) = delete;
  ~Undo() {
    if (!optimizer_) return;
    optimizer_->state() = std::move(state_);
    for (std::size_t i = 0; i < options_.size(); ++i) optimizer_->param_groups()[i].set_options(std::move(options_[i]));
  }
  void keep_what_is_there() noexcept { optimizer_ = nullptr; }

 private:
  torch::optim::Optimizer* optimizer_;
  std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())> state_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
};

void check_statistics(torch::optim::Optimizer& optimizer) {
  const auto parameters = parameters_of(optimizer);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    for (const auto& [name, value] : statistics_of(optimizer, parameters[i]))
      if (name != "step" &&
          (value.sizes() != parameters[i].sizes() || value.scalar_type() != parameters[i].scalar_type()))
        refuse("the archive is of another model: its " + name + " of parameter " + std::to_string(i) +
               " has another shape or type");
}

std::vector<torch::Tensor> read_masters(torch::serialize::InputArchive& archive,
                                        const std::vector<torch::Tensor>& masters) {
  std::vector<torch::Tensor> values(masters.size());
  for (std::size_t i = 0; i < masters.size(); ++i)
    if (!archive.try_read(kMasters + ("/" + std::to_string(i)), values[i]) || values[i].sizes() != masters[i].sizes())
      refuse("the archive has no float32 copy of parameter " + std::to_string(i) +
             ": it was not saved with offload_optimizer, or is of "
             "another model");
  return values;
}

}  // namespace

void save_training(torch::serialize::OutputArchive& archive, const torch::optim::Optimizer& optimizer,
                   std::uint64_t epoch, const std::vector<torch::Tensor>& masters) {
  archive.write(kEpoch, c10::IValue(static_cast<std::int64_t>(epoch)));
  torch::serialize::OutputArchive inner(archive.compilation_unit());
  optimizer.save(inner);
  archive.write(kOptimizer, inner);
  for (std::size_t i = 0; i < masters.size(); ++i)
    archive.write(kMasters + ("/" + std::to_string(i)), masters[i].detach());
}

std::uint64_t saved_epoch(torch::serialize::InputArchive& archive) {
  c10::IValue epoch;
  if (!archive.try_read(kEpoch, epoch) || !epoch.isInt() || epoch.toInt() < 0)
    refuse("the archive is none of cohive::Optimizer's");
  return static_cast<std::uint64_t>(epoch.toInt());
}

void load_training(torch::serialize::InputArchive& archive, torch::optim::Optimizer& optimizer,
                   const std::vector<torch::Tensor>& masters, bool keep_rates) {
  torch::NoGradGuard no_grad;
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  Undo undo(optimizer);
  std::vector<torch::Tensor> values;
  try {
    torch::serialize::InputArchive inner;
    archive.read(kOptimizer, inner);
    optimizer.load(inner);
    check_statistics(optimizer);
    move_statistics_to_parameters(optimizer);  // which may have been on another device when it was saved
    values = read_masters(archive, masters);
  } catch (const c10::Error& error) {
    refuse("the archive does not fit the optimizer: " + std::string(error.what_without_backtrace()));
  }
  undo.keep_what_is_there();
  for (std::size_t i = 0; i < rates.size() && keep_rates; ++i) optimizer.param_groups()[i].options().set_lr(rates[i]);
  for (std::size_t i = 0; i < masters.size(); ++i) masters[i].copy_(values[i]);
}

}  // namespace cohive::libtorch
