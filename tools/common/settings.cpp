#include "common/settings.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <regex>
#include <string_view>
#include <vector>

#include "cohive/core/names.hpp"
#include "common/config_file.hpp"
#include "common/numbers.hpp"
#include "common/program.hpp"

namespace cohive::tools {
namespace {

/// "--batch-size" of cohive-train: "BATCH_SIZE"; the program itself: "COHIVE_TRAIN".
std::string variable_word(std::string_view name) {
  std::string word;
  for (const char c : name) word += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return word;
}

void name_variables(CLI::App& app, const std::string& prefix) {
  for (auto* option : app.get_options()) {
    if (option->get_lnames().empty()) option->configurable(false);
    if (!option->get_configurable()) continue;
    if (option->get_envname().empty()) option->envname(prefix + variable_word(option->get_lnames().front()));
    // A variable holds one text: the values of a list are separated by commas there.
    if (option->get_items_expected_max() > 1) option->delimiter(',');
  }
  for (auto* command : app.get_subcommands({})) name_variables(*command, prefix + variable_word(command->get_name()) + "_");
}

/// Options of the program and of its subcommands, by their variables.
void gather(const CLI::App& app, std::map<std::string, const CLI::Option*>& variables) {
  for (const auto* option : app.get_options())
    if (!option->get_envname().empty()) variables.emplace(option->get_envname(), option);
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) gather(*command, variables);
}

/// Kubernetes puts the addresses of its services into every container. Those of a service "cohive-bootstrap" look like
/// options: COHIVE_BOOTSTRAP_SERVICE_HOST=10.0.0.1, COHIVE_BOOTSTRAP_PORT=tcp://10.0.0.1:31337.
bool is_service_link(const std::string& entry) {
  static const std::regex kLink("[^=]*_(SERVICE_HOST|SERVICE_PORT(_[^=]*)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_[^=]*)?)=.*|"
                                "[^=]*_PORT=(tcp|udp|sctp)://.*");
  return std::regex_match(entry, kLink);
}

}  // namespace

CLI::Option* names_run(CLI::Option* option) {
  const auto check = [](const std::string& name) {
    const auto fault = fault_of_name(name);
    return fault ? shown(name) + " is no name of a run, which " + *fault : std::string();
  };
  return option->check(check);
}

void add_settings(CLI::App& app) {
  app.set_config("--config", "", "a TOML file with options by their names, as log-level = \"debug\"")
      ->type_name("FILE");
  app.config_formatter(make_config_reader(app));
  name_variables(app, variable_word(app.get_name()) + "_");
}

void check_variables(const CLI::App& app) {
  std::map<std::string, const CLI::Option*> known;
  gather(app, known);
  std::vector<std::string> names;
  for (const auto& [name, option] : known) names.push_back(name);
  for (char** entry = environ; *entry; ++entry) {
    const std::string text(*entry);
    const std::string name = text.substr(0, text.find('='));
    if (!text.starts_with(variable_word(app.get_name()) + "_") && !text.starts_with("COHIVE_LOG_")) continue;
    const auto found = known.find(name);
    if (found == known.end() && !is_service_link(text))
      throw Exit{kBadInput, name + " is set, and there is no such option" + did_you_mean(name, names) + " (see " +
                                app.get_name() + " --help)"};
    // docker's --env-file and others keep quotes as a part of the value. JSON begins with some of its own.
    if (found != known.end() && in_quotes(std::string_view(text).substr(name.size() + 1)) &&
        !found->second->get_type_name().starts_with("JSON"))
      throw Exit{kBadInput, name + " is set to a value in quotes, which are a part of it; leave them out"};
  }
}

}  // namespace cohive::tools
