// The standard output of a program: a reader that goes away ends the output, not the program.
#pragma once

namespace cohive::tools {

/// Lets std::cout write so from now on: whole lines; and a reader that has stopped reading does not keep a program from
/// ending that was asked to. Once a write has failed std::cout fails, and one line of the log says why.
void write_standard_output() noexcept;
/// Whether output was lost that has a reader: one that went away does not miss it.
bool lost_output() noexcept;

}  // namespace cohive::tools
