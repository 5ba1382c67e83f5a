#include "averaging/detail/stretch_set.hpp"

#include <algorithm>
#include <iterator>

namespace cohive::averaging {

std::vector<Stretch> StretchSet::claim(const Stretch& stretch) {
  if (stretch.length == 0) return {};
  const std::lock_guard lock(mutex_);
  auto missing = missing_of(stretch);
  if (missing.empty()) return missing;
  Intervals& intervals = covered_[stretch.tensor];
  std::size_t begin = stretch.offset, end = stretch.offset + stretch.length;
  auto at = intervals.upper_bound(begin);
  if (at != intervals.begin() && std::prev(at)->second >= begin) --at;
  while (at != intervals.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = intervals.erase(at);
  }
  intervals.emplace(begin, end);
  return missing;
}

std::vector<Stretch> StretchSet::missing(const Stretch& stretch) const {
  const std::lock_guard lock(mutex_);
  return missing_of(stretch);
}

std::vector<Stretch> StretchSet::missing_of(const Stretch& stretch) const {
  std::vector<Stretch> missing;
  const Intervals& intervals = covered_[stretch.tensor];
  std::size_t at = stretch.offset;
  const std::size_t end = stretch.offset + stretch.length;
  auto next = intervals.upper_bound(at);
  if (next != intervals.begin()) at = std::max(at, std::prev(next)->second);
  for (; at < end; ++next) {
    const std::size_t until = next == intervals.end() ? end : std::min(end, next->first);
    if (until > at) missing.push_back({stretch.tensor, at, until - at});
    if (next == intervals.end()) break;
    at = next->second;
  }
  return missing;
}

}  // namespace cohive::averaging
