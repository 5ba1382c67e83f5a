// Signals that end a program. They are caught from before main() on: SIGINT, SIGTERM, SIGXCPU and, unless a parent such
// as nohup ignores it, SIGHUP ask it to stop in order, and a second SIGINT ends it at once with exit code 130. A pipe
// without a reader and a file that may not grow (SIGPIPE, SIGXFSZ) are errors of the write alone.
#pragma once

#include "cohive/core/runtime.hpp"

namespace cohive::tools {

/// Catches the signals where that has not happened before main(), and sees that descriptors 0 to 2 are open: what opens
/// next must not get the output of this program.
void catch_signals() noexcept;
/// For work that has nothing to put in order: lets the signals end the process from now on, also one that has come
/// already.
void let_signals_end_program() noexcept;

/// The signal that has asked this program to stop; 0: none has. Any thread.
int stop_signal() noexcept;
/// Thrown where a signal asks a program to stop before its work has begun: exit code 0.
struct Stopped {};
/// Waits until a signal asks this program to stop, and returns its number. Real runtimes only.
Task<int> wait_for_stop(Runtime& runtime);
/// Waits until a descriptor is ready for `events` of poll(2). False when the program was asked to stop and the
/// descriptor is not ready within a second of that.
bool wait_until_ready(int descriptor, short events);

}  // namespace cohive::tools
