// The file of --config: TOML. Keys are the names of options without their dashes, "_" and "-" being alike; options of a
// subcommand stand under [subcommand].
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

namespace cohive::tools {

/// Reads the file and gives its values to the options of `app` that the command line has not set. Options that it sets
/// to an empty list have none, whatever the environment says. Throws Exit with code 2 and "file:line: a sentence".
std::shared_ptr<CLI::Config> make_config_reader(CLI::App& app);

/// Words for the end of a sentence that refuses a name: the known name that is most like it, or nothing.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& known);

}  // namespace cohive::tools
