// The history of a run as a picture.
#pragma once

#include "monitor/history.hpp"

namespace cohive::tools {

/// Loss by epoch, speed and trainers by time, as an SVG document.
std::string plot_svg(const std::deque<Look>& looks, const std::string& title);

}  // namespace cohive::tools
