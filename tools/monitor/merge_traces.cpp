#include "monitor/merge_traces.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cohive/core/log.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"

namespace cohive::tools {
namespace {

using nlohmann::json;

constexpr double kClockMayDiffer = 0.5e6;  // microseconds: what networks and schedulers make of one moment

struct TraceFile {
  std::string path;
  std::vector<json> events;
  std::map<std::string, double> rounds;  ///< by group id: when its all-reduce began
  std::optional<double> shift;           ///< microseconds, to the clock of the first file
};

/// An event is a line. What a killed process has written of its last one is left out.
TraceFile read_trace(const std::string& path) {
  TraceFile trace{.path = path, .events = {}, .rounds = {}, .shift = {}};
  std::ifstream file(path);
  if (!file) throw Exit{kBadInput, "cannot read " + path};
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == ',') line.pop_back();
    json event = json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("ph") || !event["ph"].is_string()) continue;
    if (event.contains("ts") && !event["ts"].is_number()) continue;
    if (!event.contains("name") || !event["name"].is_string()) continue;
    const json args = event.value("args", json::object());
    if (event["name"] == "all-reduce" && event["ph"] == "b" && args.contains("group_id") &&
        args["group_id"].is_string() && event.contains("ts"))
      trace.rounds.emplace(args["group_id"].get<std::string>(), event["ts"].get<double>());
    trace.events.push_back(std::move(event));
  }
  if (trace.events.empty()) throw Exit{kBadInput, path + " is no trace of cohive"};
  return trace;
}

/// The middle of the differences in the rounds that two have in common.
std::optional<double> difference(const TraceFile& right, const TraceFile& other) {
  std::vector<double> differences;
  for (const auto& [group, begin] : other.rounds)
    if (const auto found = right.rounds.find(group); found != right.rounds.end())
      differences.push_back(found->second + *right.shift - begin);
  if (differences.empty()) return std::nullopt;
  const auto middle = differences.begin() + static_cast<std::ptrdiff_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  return std::abs(*middle) > kClockMayDiffer ? *middle : 0;
}

void set_clocks_right(std::vector<TraceFile>& traces) {
  traces.front().shift = 0;
  for (bool found = true; found;) {
    found = false;
    for (TraceFile& trace : traces)
      for (const TraceFile& right : traces)
        if (!trace.shift && right.shift && (trace.shift = difference(right, trace))) found = true;
  }
}

}  // namespace

std::vector<std::string> merge_traces(const std::vector<std::string>& paths, const std::string& output) {
  const OutputFile file("--output", output);
  for (const std::string& path : paths)
    refuse_same_files({{"--output", output}, {"--log-file", log_file()}}, {{"FILES", path}});
  std::vector<TraceFile> traces;
  for (const std::string& path : paths) traces.push_back(read_trace(path));
  set_clocks_right(traces);
  std::string text = "[\n";
  std::vector<std::string> said;
  std::size_t process = 0, written = 0;
  for (TraceFile& trace : traces) {
    ++process;
    for (json& event : trace.events) {
      event["pid"] = process;
      if (event.contains("ts")) event["ts"] = event["ts"].get<double>() + trace.shift.value_or(0);
      text += (written++ ? ",\n" : "") + event.dump(-1, ' ', false, json::error_handler_t::replace);
    }
    said.push_back(log::format("{}: {} events, {} rounds", trace.path, trace.events.size(), trace.rounds.size()) +
                   (!trace.shift        ? ", none of them with another file: its clock is taken as it is"
                    : *trace.shift != 0 ? log::format(", its clock moved by {:.1f} s", *trace.shift / 1e6)
                                        : std::string()));
  }
  file.write(text + "\n]\n");
  return said;
}

}  // namespace cohive::tools
