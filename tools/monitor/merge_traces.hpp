// Traces of several peers (core/trace.hpp) as one picture.
#pragma once

#include <string>
#include <vector>

namespace cohive::tools {

/// Writes the events of all files into one. Where a peer's clock is off by more than half a second, the rounds that it
/// shares with the first file, by group id, or with one that was set right before, say by how much. Throws Exit for
/// files that cannot be read or written. Returns a sentence for each file.
std::vector<std::string> merge_traces(const std::vector<std::string>& paths, const std::string& output);

}  // namespace cohive::tools
