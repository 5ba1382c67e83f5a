/// \file
/// What a process that seems to hang is doing.
#pragma once

#include "cohive/core/runtime.hpp"

namespace cohive {

/// Writes every task of the loop, and the last lines of the log (log_output.hpp), to the log, whatever its level.
void write_diagnostics(const Runtime& runtime);

/// Does so at each SIGUSR1, for a program to spawn that has no other use for the signal. Real runtimes only.
Task<void> write_diagnostics_at_signal(Runtime& runtime);

}  // namespace cohive
