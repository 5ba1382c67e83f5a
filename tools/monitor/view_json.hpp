// A run as JSON, for the page and for programs.
#pragma once

#include <nlohmann/json.hpp>

#include "monitor/history.hpp"

namespace cohive::tools {

/// What cohive-monitor --json prints of a look.
nlohmann::json summary_json(const RunView& view);
/// All of it: peers, links, warnings, curves. docs/watching.md has the keys.
nlohmann::json view_json(const RunView& view, const std::deque<Look>& looks);

}  // namespace cohive::tools
