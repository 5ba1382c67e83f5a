// What is wrong with a run, as sentences.
#pragma once

#include <optional>

#include "monitor/run_view.hpp"

namespace cohive::tools {

std::vector<Warning> warnings_of(const RunView& view, const SwarmMap* map);
/// Says that the last look at the run got no answer. \param since  the look before that got one; nullopt: none has yet
Warning blind_warning(std::optional<Duration> since);

}  // namespace cohive::tools
