// Every option of a program as a flag, as an environment variable COHIVE_<PROGRAM>_<NAME> and as a line of a file
// (--config FILE, TOML or INI). A flag goes before the file, and the file before the environment. "_" and "-" are alike
// in names. Options of a subcommand are COHIVE_<PROGRAM>_<SUBCOMMAND>_<NAME>, and stand in the file under [subcommand].
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cohive::tools {

/// While it lives, options that are added to `app` come under this heading of --help. Subcommands take it over, so they
/// are added outside.
class OptionGroup {
 public:
  OptionGroup(CLI::App& app, const std::string& heading) : app_(app), before_(app.option_defaults()->get_group()) {
    app.option_defaults()->group(heading);
  }
  OptionGroup(const OptionGroup&) = delete;
  OptionGroup& operator=(const OptionGroup&) = delete;
  ~OptionGroup() { app_.option_defaults()->group(before_); }

 private:
  CLI::App& app_;
  std::string before_;
};

/// Makes the option, a number of seconds, take units, too: 500ms, 30s, 5m, 2h, 1d.
CLI::Option* in_seconds(CLI::Option* option, double least, double most);
/// The same for a text: turns it into a number of seconds. False if it is none.
bool read_seconds(std::string& text);

/// Gives all options of `app` and of its subcommands their variable and adds --config; after the last option was added.
/// Leaves out what may stand on the command line alone (`configurable(false)`), and keeps a variable that is set.
void add_settings(CLI::App& app);

/// Throws Exit with code 2 when the environment has a variable with the prefix of this program that is no option of it.
void refuse_unknown_variables(const CLI::App& app);

}  // namespace cohive::tools
