// This program formats by its fmt, cohive's log lines by cohive's.
#include <fmt/format.h>

#include <cstdio>

#include "cohive/core/log.hpp"

static_assert(FMT_VERSION >= 110000);

int main() {
  cohive::log::info("program", "{} and {:.1f}", "text", 2.5);
  const std::string text = fmt::format("{}", 2.5);
  std::printf("%s by fmt %d\n", text.c_str(), FMT_VERSION);
  return text == "2.5" ? 0 : 1;
}
