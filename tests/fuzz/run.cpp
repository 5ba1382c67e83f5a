#include "run.hpp"

#include <algorithm>

#include "support/memory_peak.hpp"

namespace cohive::fuzz {

void run(Target target, ByteView input) {
  static const bool warmed_up = [target] {  // what libraries set up once is not the input's
    target({});
    return true;
  }();
  (void)warmed_up;
  stretch(0);
  const MemoryPeak peak;
  target(input);
  const std::size_t given = std::max(input.size(), stretched()), most = kBytesPerByte * given + kBytesOnce;
  if (peak.bytes() > most) std::fprintf(stderr, "%zu bytes for %zu of input\n", peak.bytes(), given);
  expect(peak.bytes() <= most, "memory is bounded by what came");
}

Bytes repeated(ByteView input, std::size_t from, std::size_t length, std::size_t size) {
  from = std::min(from, input.size());
  length = std::min(length, input.size() - from);
  Bytes result(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(from));
  const ByteView part = input.subspan(from, length);
  if (part.empty()) return result;
  result.reserve(size + part.size());
  while (result.size() < size) result.insert(result.end(), part.begin(), part.end());
  return result;
}

}  // namespace cohive::fuzz
