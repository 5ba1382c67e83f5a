#include "monitor/history.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ranges>

#include "cohive/core/errors.hpp"

namespace cohive::tools {
namespace {

using nlohmann::json;

constexpr std::size_t kMostText = 64 << 20;  // bytes of a file's end: the looks that are kept, and those at other runs

Look look_of(const RunView& view) {
  Look look{.time = view.time,
            .epoch = view.epoch,
            .samples = view.samples,
            .samples_per_second = view.samples_per_second,
            .trainers = view.trainers,
            .clients = view.clients,
            .loss = view.loss,
            .loss_step = view.loss_step,
            .epoch_samples = view.epoch_samples};
  if (view.mapped) {
    look.nodes = view.nodes;
    look.reachable = view.reachable;
  }
  return look;
}

}  // namespace

std::string line_of(const Look& look, const std::string& run_id) {
  json line{{"run_id", run_id},
            {"time", look.time},
            {"epoch", look.epoch},
            {"samples", look.samples},
            {"samples_per_second", look.samples_per_second},
            {"trainers", look.trainers},
            {"clients", look.clients}};
  if (look.loss) {
    line["loss"] = *look.loss;
    line["loss_step"] = look.loss_step;
  }
  if (look.epoch_samples > 0) line["epoch_samples"] = look.epoch_samples;
  if (look.nodes) line["nodes"] = *look.nodes;
  if (look.reachable) line["reachable"] = *look.reachable;
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<RecordedLook> look_from(const std::string& text) try {
  const json line = json::parse(text);
  Look look{.time = line.at("time"),
            .epoch = line.at("epoch"),
            .samples = line.at("samples"),
            .samples_per_second = line.at("samples_per_second"),
            .trainers = line.at("trainers"),
            .clients = line.at("clients")};
  if (line.contains("loss")) {
    look.loss = line.at("loss").get<double>();
    look.loss_step = line.at("loss_step");
  }
  look.epoch_samples = line.value("epoch_samples", 0.0);
  if (line.contains("nodes")) look.nodes = line.at("nodes").get<std::size_t>();
  if (line.contains("reachable")) look.reachable = line.at("reachable").get<std::size_t>();
  return RecordedLook{.run_id = line.at("run_id").get<std::string>(), .look = look};
} catch (const json::exception&) {
  return std::nullopt;
}

std::optional<std::string> LookHistory::add(const RunView& view) {
  const Look look = look_of(view);
  const bool new_epoch = looks_.empty() || looks_.back().epoch != look.epoch;
  if (new_epoch) {
    if (most_samples_ > 0 && !looks_.empty()) epoch_size_ = most_samples_;
    most_samples_ = 0;
  }
  most_samples_ = std::max(most_samples_, look.samples);
  if (look.epoch_samples > 0) epoch_size_ = look.epoch_samples;
  if (!new_epoch && looks_.back().loss == look.loss && look.time - looks_.back().time < kPeriod) return std::nullopt;
  keep(look);
  return line_of(look, run_id_);
}

void LookHistory::keep(const Look& look) {
  if (looks_.size() >= kKept) looks_.pop_front();
  looks_.push_back(look);
}

Result<std::size_t> LookHistory::load(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return 0;
  std::ifstream file(path);
  if (!file) return system_error(Errc::io, errno, path);
  std::deque<std::string> lines;
  std::size_t bytes = 0;
  for (std::string line; std::getline(file, line);) {
    bytes += line.size() + 1;
    lines.push_back(line);
    for (; bytes > kMostText; lines.pop_front()) bytes -= lines.front().size() + 1;
  }
  std::vector<Look> found;  // the last one first
  std::size_t nonsense = 0;
  for (auto line = lines.rbegin(); line != lines.rend() && found.size() < kKept; ++line) {
    if (line->empty()) continue;
    const auto recorded = look_from(*line);
    if (!recorded) {
      ++nonsense;
    } else if (recorded->run_id == run_id_) {
      found.push_back(recorded->look);
    }
  }
  std::ranges::reverse(found);
  for (const Look& look : found) {
    keep(look);
    if (look.epoch_samples > 0) epoch_size_ = look.epoch_samples;
  }
  return nonsense;
}

RunView LookHistory::last_seen() const {
  RunView view;
  const auto last =
      std::find_if(looks_.rbegin(), looks_.rend(), [](const Look& look) { return look.trainers + look.clients > 0; });
  if (last == looks_.rend()) return view;
  view.time = last->time;
  view.epoch = view.claimed = last->epoch;
  view.samples = last->samples;
  view.trainers = last->trainers;
  view.clients = last->clients;
  view.target = epoch_size_;
  view.loss = last->loss;
  view.loss_step = last->loss_step;
  view.epoch_samples = last->epoch_samples;
  return view;
}

std::optional<double> LookHistory::last_epoch_size() const {
  return epoch_size_;
}

std::vector<Look> losses_of(const std::deque<Look>& looks) {
  std::vector<Look> losses;
  const auto add = [&](const Look& look) {
    if (!losses.empty() && losses.back().loss_step == look.loss_step)
      losses.back() = look;
    else
      losses.push_back(look);
  };
  const auto drop = [&](std::uint64_t begin) {
    std::erase_if(losses, [begin](const Look& old) { return old.loss_step >= begin; });
  };
  const auto has_loss = [](const Look& look) { return look.loss.has_value(); };
  follow_run(looks | std::views::filter(has_loss), [](const Look& look) { return look.loss_step; }, add, drop);
  return losses;
}

}  // namespace cohive::tools
