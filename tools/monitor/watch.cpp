#include "monitor/watch.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "common/program.hpp"
#include "monitor/view_json.hpp"

namespace cohive::tools {
namespace {

constexpr std::size_t kBarWidth = 30;
constexpr const char *kClearScreen = "\x1b[H\x1b[2J", *kClearRest = "\x1b[K";

// ---- A line

void print_line(const RunView& view, bool as_json) {
  if (as_json) {
    std::cout << summary_json(view).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
    return;
  }
  std::cout << view.run_id << ": " << view.trainers + view.clients << " peers (" << view.clients << " clients), epoch "
            << view.epoch << ", " << static_cast<std::uint64_t>(view.samples) << " samples accumulated, "
            << log::format("{:.1f}", view.samples_per_second) << " samples/s"
            << (view.loss ? log::format(", loss {:.4f}", *view.loss) : "") << (view.ended ? ", ended" : "")
            << std::endl;
}

Task<int> print_lines(Dht& dht, WatchOptions options) {
  RunView seen;
  for (;;) {
    auto records = co_await read_records(dht, options.collector.run_id);
    if (!records && options.once)
      throw Exit{kFailed, "the progress of the run cannot be read: " + records.error().message()};
    if (records) {
      const RunView view = make_view({.run_id = options.collector.run_id, .target = options.collector.target},
                                     dht.now(), *records, nullptr, &seen);
      if (saw_the_run(view)) seen = view;
      print_line(view, options.json);
    } else {
      // A line would say that nobody trains, of which nothing is known.
      log::warn("monitor", "the progress of the run cannot be read: {}", records.error());
    }
    if (options.once || !std::cout) co_return 0;  // without a reader there is nothing to do
    co_await dht.runtime().sleep_for(options.collector.period);
  }
}

// ---- A table

std::string number_or_dash(const std::optional<double>& value) {
  if (!value) return "-";
  return std::abs(*value) >= 100 ? log::format("{:.0f}", *value) : log::format("{:.3g}", *value);
}

std::string head_of(const RunView& view) {
  std::string text = log::format("{}  epoch {}  {} trainers", view.run_id, view.epoch, view.trainers + view.clients);
  if (view.clients > 0) text += log::format(" ({} clients)", view.clients);
  text += log::format("  {:.1f} samples/s", view.samples_per_second);
  if (view.loss) text += log::format("  loss {:.4f}", *view.loss);
  if (view.ended) text += "  ended";
  return text +
         (view.mapped ? log::format("  {} of {} nodes answer", view.reachable, view.nodes) : "  looking around ...");
}

std::string bar_of(const RunView& view) {
  if (!view.target || *view.target <= 0)
    return log::format("{:.0f} samples of this epoch; how many it takes is known after the first", view.samples);
  const double share = std::clamp(view.samples / *view.target, 0.0, 1.0);
  const auto full = static_cast<std::size_t>(share * kBarWidth);
  std::string text = "[" + std::string(full, '#') + std::string(kBarWidth - full, '.') + "]";
  text += log::format(" {:.0f} of {}{:.0f} samples", view.samples, view.target_estimated ? "about " : "", *view.target);
  if (view.eta) text += log::format(", ends in {:.0f} s", *view.eta);
  return text;
}

std::string row_of(const PeerView& peer) {
  const std::string id = peer.id.size() > 14 ? ".." + peer.id.substr(peer.id.size() - 12) : peer.id;
  const auto whole = [](const std::optional<std::uint64_t>& value) { return value ? std::to_string(*value) : "-"; };
  return log::format("{:<15}{:<9}{:<10}{:>7}{:>10}{:>11}{:>9}{:>6}{:>10}  {}", id, to_text(peer.role), peer.software,
                     whole(peer.epoch), whole(peer.samples), number_or_dash(peer.samples_per_second),
                     number_or_dash(peer.loss),
                     peer.age ? log::format("{:.0f} s", std::max(0.0, *peer.age)) : std::string("-"),
                     peer.reachable == false ? std::string("no answer")
                     : peer.rtt              ? log::format("{:.1f} ms", *peer.rtt * 1000)
                                             : std::string("-"),
                     peer.address);
}

std::string screen_of(const RunView& view) {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0;
  std::string screen = kClearScreen;
  for (const std::string& line : table_of(view, known ? size.ws_col : 120, known ? size.ws_row - 1U : 40))
    screen += line + kClearRest + "\n";
  return screen;
}

Task<void> draw(Collector& collector) {
  for (;;) {
    co_await collector.changed();
    std::cout << screen_of(collector.view()) << std::flush;
    if (!std::cout) throw Exit{0, "the terminal is gone"};
  }
}

Task<int> draw_table(Dht& dht, CollectorOptions options) {
  Collector collector(dht, std::move(options));
  std::vector<Task<void>> work;
  work.push_back(draw(collector));
  work.push_back(Collector::look_again_and_again(collector));
  work.push_back(Collector::crawl_again_and_again(collector));
  co_await when_all(dht.runtime(), std::move(work));
  co_return 0;
}

}  // namespace

std::vector<std::string> table_of(const RunView& view, std::size_t columns, std::size_t rows) {
  std::vector<std::string> lines{head_of(view), bar_of(view)};
  for (const Warning& warning : view.warnings) lines.push_back("! " + warning.message);
  lines.push_back("");
  lines.push_back(log::format("{:<15}{:<9}{:<10}{:>7}{:>10}{:>11}{:>9}{:>6}{:>10}  {}", "peer", "role", "software",
                              "epoch", "samples", "samples/s", "loss", "age", "rtt", "address"));
  for (const PeerView& peer : view.peers) lines.push_back(row_of(peer));
  if (lines.size() > rows && rows > 1) {
    const std::size_t hidden = lines.size() - rows + 1;
    lines.resize(rows - 1);
    lines.push_back(log::format("and {} more", hidden));
  }
  // A warning may quote what a user typed; ids, addresses and names of software are ASCII.
  for (std::string& line : lines) {
    std::ranges::replace_if(line, [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
    if (line.size() > columns) line.resize(columns);
  }
  return lines;
}

Task<int> watch_run(Dht& dht, WatchOptions options) {
  if (options.table) return draw_table(dht, std::move(options.collector));
  return print_lines(dht, std::move(options));
}

}  // namespace cohive::tools
