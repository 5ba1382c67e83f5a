// A run in the terminal: a line now and then, or a table that follows it.
#pragma once

#include "monitor/collector.hpp"

namespace cohive::tools {

struct WatchOptions {
  CollectorOptions collector;
  bool once = false, json = false;
  bool table = false;  ///< redraw the screen; for a terminal
};

Task<int> watch_run(Dht& dht, WatchOptions options);

/// The table as lines of at most `columns` characters, `rows` of them at most.
std::vector<std::string> table_of(const RunView& view, std::size_t columns, std::size_t rows);

}  // namespace cohive::tools
