#include "common/settings.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <regex>
#include <string_view>
#include <vector>

#include "common/program.hpp"

namespace cohive::tools {
namespace {

/// "--batch-size" of cohive-train: "BATCH_SIZE"; the program itself: "COHIVE_TRAIN".
std::string variable_word(std::string_view name) {
  std::string word;
  for (const char c : name) word += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return word;
}

/// TOML and INI as CLI11 reads them, with "batch_size" for "batch-size".
class DashedConfig final : public CLI::ConfigTOML {
 public:
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    auto items = CLI::ConfigTOML::from_config(input);
    for (auto& item : items) {
      std::ranges::replace(item.name, '_', '-');
      for (auto& parent : item.parents) std::ranges::replace(parent, '_', '-');
    }
    return items;
  }
};

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

bool has_variable(const CLI::App& app, std::string_view name) {
  return std::ranges::any_of(app.get_options(), [&](const CLI::Option* option) { return option->get_envname() == name; }) ||
         std::ranges::any_of(app.get_subcommands({}), [&](const CLI::App* command) { return has_variable(*command, name); });
}

/// Kubernetes puts the addresses of its services into every container. Those of a service "cohive-bootstrap" look like
/// options: COHIVE_BOOTSTRAP_SERVICE_HOST=10.0.0.1, COHIVE_BOOTSTRAP_PORT=tcp://10.0.0.1:31337.
bool is_service_link(const std::string& entry) {
  static const std::regex kLink("[^=]*_(SERVICE_HOST|SERVICE_PORT(_[^=]*)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_[^=]*)?)=.*|"
                                "[^=]*_PORT=(tcp|udp|sctp)://.*");
  return std::regex_match(entry, kLink);
}

CLI::AsNumberWithUnit time_units() {
  static const std::map<std::string, double> kUnits{{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}};
  return CLI::AsNumberWithUnit(kUnits, CLI::AsNumberWithUnit::CASE_SENSITIVE);
}

}  // namespace

CLI::Option* in_seconds(CLI::Option* option, double least, double most) {
  CLI::Validator units = time_units();
  units.description("");  // the type says it
  return option->type_name("TIME")->transform(units)->check(CLI::Range(least, most));
}

bool read_seconds(std::string& text) {
  try {
    return time_units()(text).empty();
  } catch (const CLI::ValidationError&) {
    return false;
  }
}

void add_settings(CLI::App& app) {
  app.set_config("--config", "", "a TOML or INI file with options by their names, as log-level = \"debug\"")->type_name("FILE");
  app.config_formatter(std::make_shared<DashedConfig>());
  app.allow_config_extras(CLI::config_extras_mode::error);
  name_variables(app, variable_word(app.get_name()) + "_");
}

void refuse_unknown_variables(const CLI::App& app) {
  const std::string prefix = variable_word(app.get_name()) + "_";
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    if (!text.starts_with(prefix)) continue;
    const auto name = text.substr(0, text.find('='));
    if (!has_variable(app, name) && !is_service_link(*entry))
      throw Exit{kBadInput, std::string(name) + " is set, and there is no such option (see " + app.get_name() + " --help)"};
  }
}

}  // namespace cohive::tools
