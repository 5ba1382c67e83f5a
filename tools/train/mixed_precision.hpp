// Computing in half precision where that is safe, as torch.autocast does; parameters and gradients stay float32.
#pragma once

#include <ATen/autocast_mode.h>

#include <optional>

namespace cohive::tools {

/// While it lives, this thread computes so; nullopt: as always.
class Autocast {
 public:
  Autocast(at::DeviceType device, std::optional<at::ScalarType> type) : device_(device), on_(type.has_value()) {
    if (!on_) return;
    at::autocast::set_autocast_dtype(device_, *type);
    at::autocast::set_autocast_enabled(device_, true);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::clear_cache();  // parameters in half precision, which the next step makes old
  }
  Autocast(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool on_;
};

}  // namespace cohive::tools
