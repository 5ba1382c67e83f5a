// Every option of a program as a flag, as an environment variable COHIVE_<PROGRAM>_<NAME> and as a line of a file
// (--config FILE, TOML). A flag goes before the file, and the file before the environment. "_" and "-" are alike in
// names. A variable that is set to nothing is as if it were not there. Options of a subcommand are
// COHIVE_<PROGRAM>_<SUBCOMMAND>_<NAME>, and stand in the file under [subcommand].
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

/// Moves options to the heading "Advanced", which is for experiments and for what hardly anybody has to choose: --help
/// leaves them out, --help-all has them, and `--set name=value` sets them as their flags do. \param names  "--name"
void make_advanced(CLI::App& app, std::initializer_list<const char*> names);
/// Gives a program that has such options --help-all and --set. After the last option was added.
void add_help(CLI::App& app);
/// Replaces `--set name=value` by `--name=value`. Throws Exit with code 2 where there is no such option.
/// \param arguments  as they were typed
void apply_set(const CLI::App& app, std::vector<std::string>& arguments);

/// Makes the option take the name of a run.
CLI::Option* names_run(CLI::Option* option);

/// Gives all options of `app` and of its subcommands their variable and adds --config; after the last option was added.
/// Leaves out what may stand on the command line alone (`configurable(false)`), and keeps a variable that is set.
void add_settings(CLI::App& app);

/// Throws Exit with code 2 when the environment has a variable with the prefix of this program, or of the log of all,
/// that is no option of it, or whose value is in quotes; CLI::ParseError for a value that its option refuses. After the
/// arguments were parsed.
void check_variables(CLI::App& app);

}  // namespace cohive::tools
