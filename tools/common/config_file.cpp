#include "common/config_file.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <cstdlib>
#include <istream>
#include <map>
#include <numeric>
#include <set>

#include "cohive/core/log.hpp"
#include "common/numbers.hpp"
#include "common/program.hpp"

namespace cohive::tools {
namespace {

constexpr std::size_t kMaxFile = 1 << 20;  // bytes; an option takes one line

std::string dashed(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

std::string kind_of(const CLI::Option& option) {
  const std::string name = option.get_type_name();  // with what is checked after a colon
  return option.get_items_expected_max() == 0 ? "flag" : name.substr(0, name.find(':'));
}

bool takes_numbers(const std::string& kind) {
  static const std::set<std::string> kKinds{"INT", "UINT", "FLOAT", "TIME", "RATE", "PERIOD", "JSON"};
  return kKinds.contains(kind);
}

std::string text_of(double number) {
  const std::string text = log::format("{}", number);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;  // 5.0 is no whole number
}

/// Changes of one letter that make one name of the other.
std::size_t distance(const std::string& from, const std::string& to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= to.size(); ++j)
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, diagonal + (from[i - 1] != to[j - 1])}));
  }
  return row.back();
}

class Reader {
 public:
  Reader(CLI::App& app, std::string path) : program_(app), path_(std::move(path)) {}

  void read(std::istream& input) {
    std::string text(kMaxFile + 1, '\0');
    input.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(input.gcount()));
    if (text.size() > kMaxFile) throw Exit{kBadInput, path_ + ": more than 1 MiB, which is no file of options"};
    try {
      read(toml::parse(text, path_), program_);
    } catch (const toml::parse_error& error) {
      const std::string sentence(error.description());
      refuse(error.source(), sentence + (sentence.ends_with("value type") ? "; a text is in quotes" : ""));
    }
  }

 private:
  [[noreturn]] void refuse(const toml::source_region& at, const std::string& sentence) const {
    throw Exit{kBadInput, log::format("{}:{}: {}", path_, at.begin.line, sentence)};
  }

  void read(const toml::table& table, CLI::App& app) {
    std::map<std::pair<std::uint64_t, std::string>, const toml::node*> by_line;
    for (const auto& [key, node] : table) by_line.emplace(std::pair(node.source().begin.line, key.str()), &node);
    for (const auto& [place, node] : by_line) {
      const std::string& key = place.second;
      if (const auto* section = node->as_table()) {
        read(*section, command(key, *section, app));
      } else {
        set(key, *node, app);
      }
    }
  }

  CLI::App& command(const std::string& key, const toml::table& section, CLI::App& app) {
    std::vector<std::string> known;
    for (auto* one : app.get_subcommands({})) {
      known.push_back(one->get_name());
      if (one->get_name() == dashed(key)) return *one;
    }
    if (find(key, app)) refuse(section.source(), key + " is an option, which takes no table");
    const std::string none_known = ": " + app.get_name() + " has no subcommands, its options stand above all sections";
    refuse(section.source(),
           "there is no section [" + key + "]" + (known.empty() ? none_known : did_you_mean(dashed(key), known)));
  }

  static CLI::Option* find(const std::string& key, CLI::App& app) {
    for (auto* option : app.get_options())
      if (std::ranges::count(option->get_lnames(), dashed(key))) return option;
    return nullptr;
  }

  void set(const std::string& key, const toml::node& node, CLI::App& app) {
    CLI::Option* option = find(key, app);
    if (!option) {
      std::vector<std::string> known;
      for (auto* one : app.get_options())
        if (one->get_configurable()) std::ranges::copy(one->get_lnames(), std::back_inserter(known));
      refuse(node.source(), "there is no option " + shown(key) + did_you_mean(dashed(key), known));
    }
    if (!option->get_configurable()) refuse(node.source(), key + " is for the command line alone");
    if (const auto [before, first] = seen_.emplace(option, key); !first)
      refuse(node.source(), key + " sets what " + before->second + " has set above");
    if (!option->empty()) return;  // the command line goes before
    const auto values = values_of(key, node, *option);
    if (values.empty()) {
      if (!option->get_envname().empty()) ::unsetenv(option->get_envname().c_str());
      // These take the place of addresses that nobody has given: an empty list gives none.
      if (std::ranges::count(option->get_lnames(), "initial-peers"))
        for (const char* name : {"INITIAL_PEERS", "PL_INITIAL_PEERS"}) ::unsetenv(name);
      return;
    }
    try {
      option->add_result(values);
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      refuse(node.source(), error.what());
    }
  }

  std::vector<std::string> values_of(const std::string& key, const toml::node& node, const CLI::Option& option) const {
    const auto* list = node.as_array();
    if (!list) return {value_of(key, node, option)};
    if (option.get_items_expected_max() <= 1) refuse(node.source(), key + " takes one value, not a list");
    std::vector<std::string> values;
    for (const auto& item : *list) values.push_back(value_of(key, item, option));
    return values;
  }

  std::string value_of(const std::string& key, const toml::node& node, const CLI::Option& option) const {
    const std::string kind = kind_of(option);
    if (kind == "flag") {
      if (const auto* flag = node.as_boolean())
        return option.get_flag_value(dashed(key), flag->get() ? "true" : "false");
      refuse(node.source(), key + " takes true or false");
    }
    if (const auto* text = node.as_string()) return text->get();
    if (kind == "JSON" && node.is_boolean()) return *node.value<bool>() ? "true" : "false";
    if (!takes_numbers(kind)) refuse(node.source(), key + " takes a text in quotes");
    if (const auto* number = node.as_integer()) return std::to_string(number->get());
    if (const auto* number = node.as_floating_point()) return text_of(number->get());
    refuse(node.source(), key + " takes a number" + (kind == "JSON" || kind == "TIME" ? " or a text in quotes" : ""));
  }

  CLI::App& program_;
  std::string path_;
  std::map<const CLI::Option*, std::string> seen_;  // and the key that has set it
};

/// CLI11 asks it for a list of settings; it sets the options by itself instead, which tells the line of a mistake.
class TomlConfig final : public CLI::Config {
 public:
  explicit TomlConfig(CLI::App& app) : app_(app) {}
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    Reader(app_, app_.get_config_ptr()->results().front()).read(input);
    return {};
  }
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }

 private:
  CLI::App& app_;
};

}  // namespace

std::shared_ptr<CLI::Config> make_config_reader(CLI::App& app) {
  return std::make_shared<TomlConfig>(app);
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& known) {
  constexpr std::size_t kLongest = 100, kShare = 3;
  if (name.size() > kLongest || known.empty()) return "";
  const auto best = std::ranges::min_element(known, {}, [&](const std::string& one) { return distance(name, one); });
  return distance(name, *best) * kShare <= std::max(name.size(), best->size()) ? "; did you mean " + *best + "?" : "";
}

}  // namespace cohive::tools
