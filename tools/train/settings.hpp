// Every option of cohive-train as a flag, as an environment variable COHIVE_TRAIN_<NAME> and as a line of a file
// (--config FILE, TOML or INI). A flag goes before the file, and the file before the environment. "_" and "-" are alike
// in names.
#pragma once

#include <CLI/CLI.hpp>

namespace cohive::tools {

/// Gives all options of `app` their variable and adds --config; after the last option was added.
void add_settings(CLI::App& app);

/// Throws Exit with code 2 when the environment has a COHIVE_TRAIN_ variable that is none of the options of `app`.
void refuse_unknown_variables(const CLI::App& app);

}  // namespace cohive::tools
