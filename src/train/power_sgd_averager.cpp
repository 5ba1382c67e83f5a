#include "cohive/train/power_sgd_averager.hpp"

#include <map>
#include <stdexcept>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/train/gradient_averager.hpp"

namespace cohive::train {
namespace {

using averaging::PowerSgd;
using averaging::StateSharing;

constexpr std::uint64_t kMetadataBytes = 1 << 20;

averaging::StateSharingOptions sharing_options(const averaging::AveragerOptions& options) {
  averaging::StateSharingOptions result;
  result.prefix = options.prefix;
  result.class_name = options.class_name;
  result.share = options.mode == averaging::PeerMode::node;
  return result;
}

class PowerSgdAverager final : public GradientAverager {
 public:
  PowerSgdAverager(Dht& dht, std::vector<averaging::TensorInfo> gradients, averaging::AveragerOptions options,
                   PowerSgd power_sgd)
      : GradientAverager(dht, std::move(gradients), options),
        runtime_(dht.runtime()),
        power_sgd_(std::move(power_sgd)),
        sharing_(dht, sharing_options(options)) {}

  void start() override {
    GradientAverager::start();
    sharing_.set_provider(power_sgd_.provider(averager().group_bits()));
    sharing_.start();
  }

  void reset() override { power_sgd_.reset_residuals(); }

  /// Without the factors of a member the next averages are coarser, and nothing worse.
  Task<void> load_state(Deadline deadline) override {
    if (power_sgd_.compressed().empty()) co_return;
    averaging::DownloadOptions how;
    how.limit = std::max<Duration>(deadline.remaining(runtime_.now()), 1s);
    how.max_bytes = power_sgd_.state_bytes() + kMetadataBytes;
    auto state = co_await sharing_.download(std::move(how));
    Result<> loaded = ok();
    if (state) {
      loaded = co_await power_sgd_.load(runtime_, std::move(*state));
    } else {
      loaded = state.error();
    }
    if (!loaded) log::info("train", "going on without the factors of another trainer: {}", loaded.error());
  }

  Task<std::vector<checkpoint::NamedTensor>> save() override {
    auto saved = co_await power_sgd_.save(runtime_);
    std::vector<checkpoint::NamedTensor> named;
    const auto add = [&](std::vector<codec::Tensor>& tensors, std::string_view kind) {
      for (std::size_t i = 0; i < tensors.size(); ++i)
        named.push_back({name_of(power_sgd_.compressed()[i], kind), std::move(tensors[i])});
    };
    add(saved.factors, kFactor);
    add(saved.residuals, kResidual);
    co_return named;
  }

  Task<Result<>> restore(std::vector<checkpoint::NamedTensor> named) override {
    std::map<std::string, codec::Tensor, std::less<>> by_name;
    for (auto& [name, tensor] : named) by_name.emplace(std::move(name), std::move(tensor));
    PowerSgd::Saved saved;
    const auto take = [&](std::vector<codec::Tensor>& tensors, std::string_view kind) {
      for (const std::size_t index : power_sgd_.compressed())
        if (auto found = by_name.extract(name_of(index, kind))) tensors.push_back(std::move(found.mapped()));
    };
    take(saved.factors, kFactor);
    take(saved.residuals, kResidual);
    if (!by_name.empty())
      co_return Error(averaging::Errc::bad_state,
                      "no gradient is compressed for " + log::quoted(by_name.begin()->first));
    co_return co_await power_sgd_.restore(runtime_, std::move(saved));
  }

 private:
  static constexpr std::string_view kFactor = "factor", kResidual = "residual";
  static std::string name_of(std::size_t gradient, std::string_view kind) {
    return std::to_string(gradient) + "." + std::string(kind);
  }

  Runtime& runtime_;
  PowerSgd power_sgd_;
  StateSharing sharing_;
};

}  // namespace

GradAveragerFactory power_sgd_averager(averaging::PowerSgdOptions options) {
  (void)PowerSgd({}, options);  // throws for impossible ones
  return [options](Dht& dht, std::vector<averaging::TensorInfo> gradients, averaging::AveragerOptions averager) {
    if (averager.agreed_codec)
      throw std::invalid_argument("PowerSGD uses no codec that needs agreement: choose one of the two");
    PowerSgd power_sgd(gradients, options);
    averager.class_name = "PowerSGDGradientAverager";
    averager.scheme = power_sgd.scheme();
    return std::make_unique<PowerSgdAverager>(dht, std::move(gradients), std::move(averager), std::move(power_sgd));
  };
}

}  // namespace cohive::train
