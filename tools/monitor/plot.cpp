#include "monitor/plot.hpp"

#include <algorithm>
#include <cmath>

#include "cohive/core/log.hpp"

namespace cohive::tools {
namespace {

constexpr double kWidth = 860, kPanel = 220, kTop = 44;              // of the picture, in pixels
constexpr double kLeft = 70, kRight = 20, kAbove = 26, kBelow = 34;  // around the curve of a panel
constexpr std::size_t kPoints = 1000;

struct Point {
  double x, y;
};

struct Panel {
  std::string title, unit;
  const char* color;
  std::vector<Point> points;
};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '<' || c == '>' || c == '&' || c == '"') {
      result += log::format("&#{};", static_cast<int>(code));
    } else {
      result += code < 0x20 || code > 0x7e ? '?' : c;
    }
  }
  return result;
}

/// 1, 2 or 5 times a power of ten: a quarter of the span or so.
double nice_step(double span) {
  const double raw = span / 4, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw) return factor * power;
  return 10 * power;
}

constexpr double kAlike = 1e-9;  // relative; steps of less would be lost in rounding

/// From a multiple of the step to another one, with room where all values are alike.
struct Axis {
  double low, high, step;
  static Axis around(std::vector<double> values) {
    auto [least, most] = std::ranges::minmax(values);
    if (most - least <= kAlike * std::max(std::abs(least), std::abs(most))) {
      const double room = least == 0 ? 1 : std::abs(least) * 0.1;
      least -= room;
      most += room;
    }
    const double step = nice_step(most - least);
    return {std::floor(least / step) * step, std::ceil(most / step) * step, step};
  }
};

std::string label(double x, double y, const char* anchor, const std::string& text) {
  return log::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
}

std::string drawn(const Panel& panel, double top) {
  std::string svg = label(kLeft, top + 14, "start", panel.title);
  if (panel.points.size() < 2) return svg + label(kWidth / 2, top + kPanel / 2, "middle", "no curve yet");
  std::vector<double> values;
  for (const Point& point : panel.points) values.push_back(point.y);
  const Axis axis = Axis::around(std::move(values));
  const double first = panel.points.front().x, last = panel.points.back().x, bottom = top + kPanel - kBelow;
  const auto to_x = [&](double x) {
    return kLeft + (last > first ? (x - first) / (last - first) : 0.5) * (kWidth - kLeft - kRight);
  };
  const auto to_y = [&](double y) {
    return bottom - (y - axis.low) / (axis.high - axis.low) * (kPanel - kAbove - kBelow);
  };
  const auto lines = static_cast<int>(std::lround((axis.high - axis.low) / axis.step));
  for (int line = 0; line <= lines; ++line) {
    const double value = axis.low + line * axis.step;
    svg += log::format("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#d8dce2\"/>\n", kLeft,
                       kWidth - kRight, to_y(value), to_y(value));
    svg += label(kLeft - 6, to_y(value) + 4, "end",
                 log::format("{:.4g}", std::abs(value) < axis.step / 1e6 ? 0.0 : value));
  }
  svg += label(kLeft, bottom + 16, "start", log::format("{:.4g}", first));
  svg += label(kWidth - kRight, bottom + 16, "end", log::format("{:.4g} {}", last, panel.unit));
  svg += log::format("<path fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" d=\"", panel.color);
  for (std::size_t i = 0; i < panel.points.size(); ++i)
    svg += log::format("{}{:.1f} {:.1f}", i ? "L" : "M", to_x(panel.points[i].x), to_y(panel.points[i].y));
  return svg + "\"/>\n";
}

}  // namespace

std::string plot_svg(const std::deque<Look>& looks, const std::string& title) {
  Panel loss{"loss of the trainers", "epochs", "#2563eb", {}}, rate{"samples per second", "hours", "#b45309", {}},
      trainers{"trainers", "hours", "#1a7f4b", {}};
  for (const Look& look : thinned(losses_of(looks), kPoints))
    loss.points.push_back({static_cast<double>(look.loss_step), *look.loss});
  for (const Look& look : thinned(looks, kPoints)) {
    const double hours = (look.time - looks.front().time) / 3600;
    rate.points.push_back({hours, look.samples_per_second});
    trainers.points.push_back({hours, static_cast<double>(look.trainers + look.clients)});
  }
  const Panel panels[] = {std::move(loss), std::move(rate), std::move(trainers)};
  const double height = kTop + kPanel * std::size(panels);
  std::string svg = log::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#555\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#fff\"/>\n",
      kWidth, height, kWidth, height);
  svg +=
      log::format("<text x=\"{:.1f}\" y=\"26\" font-size=\"16\" fill=\"#1b1f24\">{}</text>\n", kLeft, escaped(title));
  double top = kTop;
  for (const Panel& panel : panels) {
    svg += drawn(panel, top);
    top += kPanel;
  }
  return svg + "</svg>\n";
}

}  // namespace cohive::tools
