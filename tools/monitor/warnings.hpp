// What is wrong with a run, as sentences.
#pragma once

#include "monitor/run_view.hpp"

namespace cohive::tools {

std::vector<Warning> warnings_of(const RunView& view, const SwarmMap* map);

}  // namespace cohive::tools
