#include "optimizer_layout.hpp"

#include <torch/version.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cohive/core/log.hpp"
#include "cohive/torch/lamb.hpp"
#include "refuse.hpp"

namespace cohive::libtorch {
namespace {

namespace to = torch::optim;
using msgpack::Value;

// Releases of PyTorch, 100 * major + minor, that brought keys.
constexpr int kOldestRelease = 204;
constexpr int kDecoupledRelease = 207;

const std::vector<ScheduleEntries> kSchedules = {
    {}, {{"initial_lr", 0}}, {{"initial_lr", 0}, {"max_lr", 0}, {"min_lr", 0}}};
constexpr std::size_t kMostDifferences = 5;

/// A key of a group, with a leaf for every value.
struct Setting {
  std::string key;
  std::vector<Value> values;
  bool of_speed = false;  // what a step computes is the same
};
using Settings = std::vector<Setting>;

void add_flags(Settings& settings, std::initializer_list<const char*> booleans,
               std::initializer_list<const char*> unset) {
  for (const char* key : booleans) settings.push_back({key, {false}, true});
  for (const char* key : unset) settings.push_back({key, {Value()}, true});
  settings.push_back({"maximize", {false}});
}

template <class Options>
Settings settings_of_adam(const Options& o, bool decoupled, int release) {
  const auto [beta1, beta2] = o.betas();
  Settings settings = {{"amsgrad", {o.amsgrad()}},
                       {"betas", {beta1, beta2}},
                       {"eps", {o.eps()}},
                       {"lr", {o.lr()}},
                       {"weight_decay", {o.weight_decay()}}};
  if (release >= kDecoupledRelease) settings.push_back({"decoupled_weight_decay", {decoupled}});
  add_flags(settings, {"capturable", "differentiable"}, {"foreach", "fused"});
  return settings;
}

/// In no order, without "params"; nothing for a class that PyTorch does not have.
std::optional<Settings> settings_of_class(to::OptimizerOptions& options, int release) {
  if (auto* o = dynamic_cast<to::AdamWOptions*>(&options)) return settings_of_adam(*o, true, release);
  if (auto* o = dynamic_cast<to::AdamOptions*>(&options)) return settings_of_adam(*o, false, release);
  Settings settings;
  if (auto* o = dynamic_cast<to::SGDOptions*>(&options)) {
    settings = {{"dampening", {o->dampening()}},
                {"lr", {o->lr()}},
                {"momentum", {o->momentum()}},
                {"nesterov", {o->nesterov()}},
                {"weight_decay", {o->weight_decay()}}};
    add_flags(settings, {"differentiable"}, {"foreach", "fused"});
  } else if (auto* o = dynamic_cast<to::RMSpropOptions*>(&options)) {
    settings = {{"alpha", {o->alpha()}}, {"centered", {o->centered()}}, {"eps", {o->eps()}},
                {"lr", {o->lr()}},       {"momentum", {o->momentum()}}, {"weight_decay", {o->weight_decay()}}};
    add_flags(settings, {"capturable", "differentiable"}, {"foreach"});
  } else if (auto* o = dynamic_cast<to::AdagradOptions*>(&options)) {
    settings = {{"eps", {o->eps()}},
                {"initial_accumulator_value", {o->initial_accumulator_value()}},
                {"lr", {o->lr()}},
                {"lr_decay", {o->lr_decay()}},
                {"weight_decay", {o->weight_decay()}}};
    add_flags(settings, {"differentiable"}, {"foreach", "fused"});
  } else if (auto* o = dynamic_cast<LambOptions*>(&options)) {
    const auto [beta1, beta2] = o->betas();
    settings = {{"betas", {beta1, beta2}},
                {"bias_correction", {o->bias_correction()}},
                {"eps", {o->eps()}},
                {"lr", {o->lr()}},
                {"weight_decay", {o->weight_decay()}}};
  } else {
    return std::nullopt;
  }
  return settings;
}

/// All keys of a group in their order; "params" has no values here.
std::optional<Settings> settings_of(to::OptimizerOptions& options, int release, const ScheduleEntries& entries) {
  auto settings = settings_of_class(options, release);
  if (!settings) return std::nullopt;
  for (const auto& [key, value] : entries) settings->push_back({key, {value}});
  settings->push_back({"params", {}});
  std::ranges::sort(*settings, {}, &Setting::key);
  return settings;
}

Value leaf(Value value) {
  return msgpack::Map{{{"type", "value"}, {"value", std::move(value)}}};
}

// ---- Reading those of a donor

/// The value of a leaf; null: it is a tensor, or none at all.
const Value* value_of(const Value& leaf) {
  const auto* map = leaf.get_if<msgpack::Map>();
  return map ? map->find("value") : nullptr;
}

bool is_flag(const Value& value) {
  return value.is_nil() || value.get_if<bool>() != nullptr;
}
bool is_number(const Value& value) {
  return !is_flag(value) && value.as_number().has_value();
}
/// Options that are unset in one program may be set in another.
bool alike(const Value& ours, const Value& theirs) {
  return is_flag(ours) ? is_flag(theirs) : is_number(ours) && is_number(theirs);
}

struct TheirGroup {
  std::size_t parameters = 0;
  std::vector<const Value*> values;  // of all keys but "params"
};

/// One group from `at` on, which moves behind it; nothing where its leaves are not of these settings.
/// \param first  the number of its first parameter  \param most  parameters: what is behind them may look like one more
std::optional<TheirGroup> read_group(const std::vector<Value>& leaves, std::size_t& at, std::uint64_t first,
                                     std::size_t most, const Settings& settings) {
  TheirGroup group;
  for (const Setting& setting : settings) {
    if (setting.key == "params") {
      const Value* number = nullptr;
      while (group.parameters < most && at < leaves.size() && (number = value_of(leaves[at])) &&
             number->as_uint() == first + group.parameters) {
        ++group.parameters;
        ++at;
      }
      continue;
    }
    for (const Value& ours : setting.values) {
      const Value* theirs = at < leaves.size() ? value_of(leaves[at]) : nullptr;
      if (!theirs || !alike(ours, *theirs)) return std::nullopt;
      group.values.push_back(theirs);
      ++at;
    }
  }
  return group;
}

/// What one of our groups would look like at the donor.
struct Expected {
  Settings settings;
  std::size_t parameters;
};

/// All groups, up to the first leaf that is a tensor. \param groups  ours; where there are more they are as the last
/// \param of_our_sizes  only groups of as many parameters
std::optional<std::vector<TheirGroup>> read_groups(const std::vector<Value>& leaves,
                                                   const std::vector<Expected>& groups, bool of_our_sizes) {
  std::vector<TheirGroup> found;
  std::uint64_t parameters = 0;
  for (std::size_t at = 0; at < leaves.size() && value_of(leaves[at]);) {
    if (of_our_sizes && found.size() == groups.size()) return std::nullopt;
    const Expected& expected = groups[std::min(found.size(), groups.size() - 1)];
    const std::size_t most = of_our_sizes ? expected.parameters : leaves.size();
    auto group = read_group(leaves, at, parameters, most, expected.settings);
    if (!group || group->parameters == 0 || (of_our_sizes && group->parameters != most)) return std::nullopt;
    parameters += group->parameters;
    found.push_back(std::move(*group));
  }
  if (found.empty() || (of_our_sizes && found.size() != groups.size())) return std::nullopt;
  return found;
}

struct Recognised {
  int release;
  ScheduleEntries schedule;          // its keys
  std::vector<Expected> expected{};  // our groups, with the donor's keys
  std::vector<TheirGroup> groups{};
  bool of_our_sizes = true;
};

/// \param groups  options and number of parameters of each  \param release  is tried first
std::optional<Recognised> recognise(const std::vector<std::pair<to::OptimizerOptions*, std::size_t>>& groups,
                                    const std::vector<Value>& theirs, int release) {
  for (const bool of_our_sizes : {true, false})
    for (const int of : {release, kDecoupledRelease, kOldestRelease})
      for (const ScheduleEntries& schedule : kSchedules) {
        Recognised found{of, schedule};
        for (const auto& [options, parameters] : groups) {
          auto settings = settings_of(*options, of, schedule);
          if (!settings) return std::nullopt;
          found.expected.push_back({std::move(*settings), parameters});
        }
        auto read = read_groups(theirs, found.expected, of_our_sizes);
        if (!read) continue;
        found.groups = std::move(*read);
        found.of_our_sizes = of_our_sizes;
        return found;
      }
  return std::nullopt;
}

/// The name of a class that has such settings; null: no class that is known.
const char* class_of(const std::vector<Value>& theirs, int release) {
  to::AdamOptions adam;
  to::SGDOptions sgd(0.1);
  to::RMSpropOptions rmsprop;
  to::AdagradOptions adagrad;
  LambOptions lamb;
  const std::pair<const char*, to::OptimizerOptions*> classes[] = {
      {"Adam or AdamW", &adam}, {"SGD", &sgd}, {"RMSprop", &rmsprop}, {"Adagrad", &adagrad}, {"Lamb", &lamb}};
  for (const auto& [name, options] : classes)
    if (recognise({{options, 0}}, theirs, release)) return name;
  return nullptr;
}

std::string text_of(const Value& value) {
  if (const auto* flag = value.get_if<bool>()) return *flag ? "true" : "false";
  if (const auto number = value.as_number()) return log::format("{}", *number);
  return "unset";
}

bool same(const Value& ours, const Value& theirs) {
  const auto a = ours.as_number(), b = theirs.as_number();
  if (is_flag(ours) || is_flag(theirs) || !a || !b) return ours.truthy() == theirs.truthy();
  return *a == *b || std::abs(*a - *b) <= 1e-6 * std::max(std::abs(*a), std::abs(*b));
}

int release_from(const std::string& text) {
  int major = 0, minor = 0;
  const char *end = text.data() + text.size(), *dot = nullptr;
  if (const auto parsed = std::from_chars(text.data(), end, major); parsed.ec == std::errc()) dot = parsed.ptr;
  const bool fine = dot && dot + 1 < end && *dot == '.' && major >= 0 && major < 1000 &&
                    std::from_chars(dot + 1, end, minor).ec == std::errc() && minor >= 0 && minor < 100;
  const int release = fine ? 100 * major + minor : 0;
  demand(release >= kOldestRelease,
         "the PyTorch of Python trainers is of a release such as 2.6, 2.4 at least, not " + log::quoted(text));
  return release;
}

}  // namespace

const int OptimizerLayout::kOwnRelease = 100 * TORCH_VERSION_MAJOR + TORCH_VERSION_MINOR;

OptimizerLayout::OptimizerLayout(std::vector<ScheduleEntries> entries, const PythonPeers& python)
    : entries_(std::move(entries)),
      scheduled_(!entries_.empty()),
      schedule_known_(python.scheduler.has_value()),
      release_known_(!python.torch.empty()),
      schedule_shown_(python.scheduler.value_or(scheduled_)),
      release_(release_known_ ? release_from(python.torch) : kOwnRelease) {}

std::vector<Value> OptimizerLayout::leaves(to::Optimizer& optimizer,
                                           const std::vector<ScheduleEntries>& entries) const {
  std::vector<Value> leaves;
  std::size_t parameters = 0;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    auto& group = optimizer.param_groups()[g];
    const auto settings = settings_of(group.options(), release_, g < entries.size() ? entries[g] : ScheduleEntries());
    if (!settings) return {};
    for (const Setting& setting : *settings) {
      for (const Value& value : setting.values) leaves.push_back(leaf(value));
      if (setting.key != "params") continue;
      for (std::size_t i = 0; i < group.params().size(); ++i) leaves.push_back(leaf(std::uint64_t{parameters++}));
    }
  }
  return leaves;
}

namespace {

/// What the plainest scheduler would have kept, had there been one when the training began.
std::vector<ScheduleEntries> plain_entries(to::Optimizer& optimizer) {
  std::vector<ScheduleEntries> entries;
  for (auto& group : optimizer.param_groups()) entries.push_back({{"initial_lr", group.options().get_lr()}});
  return entries;
}

}  // namespace

std::vector<Value> OptimizerLayout::leaves(to::Optimizer& optimizer) const {
  if (!schedule_shown_) return leaves(optimizer, std::vector<ScheduleEntries>());
  return leaves(optimizer, entries_.empty() ? plain_entries(optimizer) : entries_);
}

std::optional<std::vector<Value>> OptimizerLayout::leaves_with_schedule(to::Optimizer& optimizer) const {
  if (schedule_shown_ || schedule_known_) return std::nullopt;
  return leaves(optimizer, entries_.empty() ? plain_entries(optimizer) : entries_);
}

namespace {

const double* find_entry(const ScheduleEntries& entries, const std::string& key) {
  const auto found = std::ranges::find(entries, key, &ScheduleEntries::value_type::first);
  return found == entries.end() ? nullptr : &found->second;
}

/// Calls `f(group, setting, ours, theirs)` for every value.
template <class F>
void for_each_value(const Recognised& donor, F f) {
  for (std::size_t g = 0; g < donor.groups.size(); ++g) {
    std::size_t at = 0;
    for (const Setting& setting : donor.expected[g].settings)
      for (const Value& ours : setting.values) f(g, setting, ours, *donor.groups[g].values[at++]);
  }
}

/// \param entries  of our scheduler; none: there is none. What schedulers change is compared by what it was at first.
void compare_values(const Recognised& donor, const std::vector<ScheduleEntries>& entries,
                    std::vector<std::string>& differences) {
  std::size_t more = 0;
  const bool scheduled = !donor.schedule.empty() || !entries.empty();
  for_each_value(donor, [&](std::size_t g, const Setting& setting, Value ours, const Value& theirs) {
    if (setting.of_speed || (setting.key == "lr" && scheduled)) return;
    if (find_entry(donor.schedule, setting.key)) {
      const double* own = g < entries.size() ? find_entry(entries[g], setting.key) : nullptr;
      if (!own) return;
      ours = *own;
    }
    if (same(ours, theirs) || (differences.size() >= kMostDifferences && ++more)) return;
    const std::string of = donor.groups.size() > 1 ? " of group " + std::to_string(g) : "";
    differences.push_back(setting.key + of + " is " + text_of(theirs) + " there and " + text_of(ours) + " here");
  });
  if (more > 0) differences.push_back("and " + std::to_string(more) + " more");
}

std::vector<ScheduleEntries> entries_of(const Recognised& donor) {
  std::vector<ScheduleEntries> entries(donor.groups.size());
  for_each_value(donor, [&](std::size_t g, const Setting& setting, const Value&, const Value& theirs) {
    if (find_entry(donor.schedule, setting.key)) entries[g].emplace_back(setting.key, *theirs.as_number());
  });
  return entries;
}

std::string sizes_text(const std::vector<TheirGroup>& groups) {
  std::string text;
  for (const auto& group : groups) text += (text.empty() ? "" : " + ") + std::to_string(group.parameters);
  return text;
}

}  // namespace

OptimizerLayout::Comparison OptimizerLayout::compare(to::Optimizer& optimizer, const msgpack::Array& theirs) {
  Comparison result;
  std::vector<std::pair<to::OptimizerOptions*, std::size_t>> groups;
  for (auto& group : optimizer.param_groups()) groups.emplace_back(&group.options(), group.params().size());
  if (theirs.items.empty() || groups.empty() || !settings_of_class(*groups.front().first, release_)) return result;
  const auto found = recognise(groups, theirs.items, release_);
  if (!found) {
    const char* other = class_of(theirs.items, release_);
    result.other_class = other != nullptr;
    result.differences.push_back(other ? std::string("it is ") + other
                                       : "its settings are none that PyTorch's optimizer of this class has");
    return result;
  }
  if (!found->of_our_sizes) {
    result.differences.push_back("its groups have " + sizes_text(found->groups) + " parameters, not as ours");
    return result;
  }
  const bool scheduled = !found->schedule.empty();
  if (scheduled != scheduled_)
    result.differences.push_back(scheduled ? "it has a scheduler and this trainer has none"
                                           : "it has no scheduler and this trainer has one");
  if (found->release != release_)
    result.differences.push_back(found->release < kDecoupledRelease ? "it is of PyTorch 2.6 or earlier"
                                                                    : "it is of PyTorch 2.7 or later");
  compare_values(*found, scheduled_ ? entries_ : std::vector<ScheduleEntries>(), result.differences);
  if (!release_known_) release_ = found->release;
  if (!schedule_known_) schedule_shown_ = scheduled;
  if (scheduled && !scheduled_) entries_ = entries_of(*found);
  return result;
}

}  // namespace cohive::libtorch

namespace cohive {

void check(const PythonPeers& peers) {
  if (!peers.torch.empty()) (void)libtorch::release_from(peers.torch);
}

}  // namespace cohive
