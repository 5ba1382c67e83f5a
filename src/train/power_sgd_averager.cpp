#include "cohive/train/power_sgd_averager.hpp"

#include <stdexcept>

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
    auto loaded = state ? co_await power_sgd_.load(runtime_, std::move(*state)) : Result<>(state.error());
    if (!loaded) log::info("train", "going on without the factors of another trainer: {}", loaded.error());
  }

 private:
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
