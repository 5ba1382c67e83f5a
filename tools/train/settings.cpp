#include "train/settings.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <string_view>

#include "common/program.hpp"

namespace cohive::tools {
namespace {

constexpr std::string_view kPrefix = "COHIVE_TRAIN_";
/// What says what the program does, not how it trains.
constexpr std::string_view kCommandLineOnly[] = {"help", "config", "compare"};

std::string variable_of(const CLI::Option& option) {
  std::string name(kPrefix);
  for (const char c : option.get_lnames().front())
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// TOML and INI as CLI11 reads them, with "batch_size" for "batch-size".
class DashedConfig final : public CLI::ConfigTOML {
 public:
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    auto items = CLI::ConfigTOML::from_config(input);
    for (auto& item : items) std::ranges::replace(item.name, '_', '-');
    return items;
  }
};

}  // namespace

void add_settings(CLI::App& app) {
  app.set_config("--config", "", "a TOML or INI file with options by their names, as batch-size = 32");
  app.config_formatter(std::make_shared<DashedConfig>());
  app.allow_config_extras(CLI::config_extras_mode::error);
  for (auto* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    if (std::ranges::find(kCommandLineOnly, option->get_lnames().front()) != std::end(kCommandLineOnly)) {
      option->configurable(false);
      continue;
    }
    option->envname(variable_of(*option));
    // A variable holds one text: the values of a list are separated by commas there.
    if (option->get_items_expected_max() > 1) option->delimiter(',');
  }
}

void refuse_unknown_variables(const CLI::App& app) {
  const auto options = app.get_options();
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    if (!text.starts_with(kPrefix)) continue;
    const auto name = text.substr(0, text.find('='));
    if (std::ranges::none_of(options, [&](const CLI::Option* option) { return option->get_envname() == name; }))
      throw Exit{kBadInput, std::string(name) + " is set, and there is no such option (see cohive-train --help)"};
  }
}

}  // namespace cohive::tools
