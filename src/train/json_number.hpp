#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

namespace cohive::train {

/// A peer may report a rate that is no number, and JSON has no word for it.
inline nlohmann::json finite(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}

}  // namespace cohive::train
