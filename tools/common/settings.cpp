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
  for (auto* command : app.get_subcommands({}))
    name_variables(*command, prefix + variable_word(command->get_name()) + "_");
}

/// Options of the program and of its subcommands, by their variables.
void gather(CLI::App& app, std::map<std::string, CLI::Option*>& variables) {
  for (auto* option : app.get_options())
    if (!option->get_envname().empty()) variables.emplace(option->get_envname(), option);
  for (auto* command : app.get_subcommands({})) gather(*command, variables);
}

/// Kubernetes puts the addresses of its services into every container. Those of a service "cohive-bootstrap" look like
/// options: COHIVE_BOOTSTRAP_SERVICE_HOST=10.0.0.1, COHIVE_BOOTSTRAP_PORT=tcp://10.0.0.1:31337.
bool is_service_link(const std::string& entry) {
  static const std::regex kLink(
      "[^=]*_(SERVICE_HOST|SERVICE_PORT(_[^=]*)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_[^=]*)?)=.*|"
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

namespace {

constexpr const char* kAdvanced = "Advanced";
constexpr const char kSet[] = "--set";

/// What a user chooses from. All the rest is there for --help-all.
class ShortHelp final : public CLI::Formatter {
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    const std::string all = CLI::Formatter::make_help(app, std::move(name), mode);
    if (mode == CLI::AppFormatMode::All) return all;
    const auto begin = all.find("\n" + std::string(kAdvanced) + ":\n");
    if (begin == std::string::npos) return all;
    const auto next = all.find("\n\n", begin + 1);
    return all.substr(0, begin) + (next == std::string::npos ? "\n" : all.substr(next + 2));
  }
};

bool has_advanced(const CLI::App& app) {
  return !app.get_options([](const CLI::Option* option) { return option->get_group() == kAdvanced; }).empty();
}

}  // namespace

void make_advanced(CLI::App& app, std::initializer_list<const char*> names) {
  for (const char* name : names) app.get_option(name)->group(kAdvanced);
}

void add_help(CLI::App& app) {
  if (!has_advanced(app)) return;
  app.set_help_all_flag("--help-all", "Print this help message with the advanced options, too, and exit");
  app.add_option(kSet, "sets any option: --set name=value")->type_name("NAME=VALUE")->configurable(false);
  app.formatter(std::make_shared<ShortHelp>());
}

void apply_set(const CLI::App& app, std::vector<std::string>& arguments) {
  if (!has_advanced(app)) return;
  const std::string with_value = std::string(kSet) + "=";
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    if (arguments[i] != kSet && !arguments[i].starts_with(with_value)) continue;
    if (arguments[i] != kSet) {
      arguments[i].erase(0, with_value.size());
    } else if (i + 1 < arguments.size()) {
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      return;  // the parser says what is missing
    }
    std::string& setting = arguments[i];
    const auto equals = setting.find('=');
    std::string name = setting.substr(0, equals);
    std::ranges::replace(name, '_', '-');
    const auto* option = name.empty() || equals == std::string::npos ? nullptr : app.get_option_no_throw("--" + name);
    if (!option || !option->get_configurable()) {
      std::vector<std::string> names;
      for (const auto* one : app.get_options())
        for (const auto& known : one->get_lnames()) names.push_back(known);
      throw Exit{kBadInput, "--set takes name=value with the name of an option, not " + shown(setting) +
                                (equals == std::string::npos ? "" : did_you_mean(name, names))};
    }
    setting = "--" + name + setting.substr(equals);
  }
}

void add_settings(CLI::App& app) {
  app.set_config("--config", "", "a TOML file with options by their names, as log-level = \"debug\"")
      ->type_name("FILE");
  app.config_formatter(make_config_reader(app));
  name_variables(app, variable_word(app.get_name()) + "_");
}

void check_variables(CLI::App& app) {
  std::map<std::string, CLI::Option*> known;
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
    if (found == known.end() || name.size() == text.size()) continue;
    CLI::Option& option = *found->second;
    const std::string value = text.substr(name.size() + 1);
    if (in_quotes(value) && !option.get_type_name().starts_with("JSON"))
      throw Exit{kBadInput, name + " is set to a value in quotes, which are a part of it; leave them out"};
    // From 2.4 on CLI11 passes over a variable whose value the option would refuse, and the program would run with
    // what it takes by default. Otherwise only a list of nothing but commas leaves an option empty here.
    if (value.empty() || !option.empty()) continue;
    option.add_result(value);
    if (!option.empty()) option.run_callback();
  }
}

}  // namespace cohive::tools
