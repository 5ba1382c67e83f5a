// Trainers that are all clients find no group, as nobody among them can be dialled. Each goes on by itself, which looks
// like a run that works: so it is said, once.
#pragma once

#include "run_context.hpp"

namespace cohive::train {

/// Warns when it is so. Ends then, or when it is dropped.
Task<void> watch_for_all_clients(RunContext& run);

}  // namespace cohive::train
