#include "work_log.hpp"

#include <algorithm>

namespace cohive::cuda {

void WorkLog::note(std::string_view name) {
  const auto known = std::ranges::find(kinds_, name, &Kind::name);
  if (known == kinds_.end())
    kinds_.push_back({name, 1});
  else
    ++known->times;
}

std::string WorkLog::list() const {
  std::string all;
  for (const auto& [name, times] : kinds_) {
    if (!all.empty()) all += ", ";
    all += name;
    if (times > 1) all += " (" + std::to_string(times) + " times)";
  }
  return all;
}

}  // namespace cohive::cuda
