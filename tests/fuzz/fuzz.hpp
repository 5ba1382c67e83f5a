// What the fuzz targets share. A target is a function that takes any bytes and must neither crash, hang nor break a
// promise; each *_fuzz.cpp defines one. tools/fuzz.sh runs them under libFuzzer, replay_test.cpp runs the corpora in
// the ordinary test suite.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "cohive/core/bytes.hpp"

namespace cohive::fuzz {

using Target = void (*)(ByteView input);

/// Every target that is linked in, by name.
inline std::map<std::string, Target>& targets() {
  static std::map<std::string, Target> all;
  return all;
}

struct Registration {
  Registration(const char* name, Target target) { targets().emplace(name, target); }
};

/// COHIVE_FUZZ_TARGET(name)(ByteView input) { ... }
#define COHIVE_FUZZ_TARGET(name)                                                     \
  static void fuzz_##name(::cohive::ByteView);                                       \
  static const ::cohive::fuzz::Registration registration_##name(#name, fuzz_##name); \
  static void fuzz_##name

/// What the target has made of its input: bytes that the code under test was given, where they are more.
inline std::size_t& stretched() {
  static std::size_t bytes = 0;
  return bytes;
}
inline void stretch(std::size_t bytes) {
  stretched() = bytes;
}

/// A promise of the code under test: ends the process when broken, which is what a fuzzer looks for.
inline void expect(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

/// Takes an input apart from the front; past its end come zeros.
class Input {
 public:
  explicit Input(ByteView bytes) : rest_(bytes) {}
  std::uint8_t byte() {
    const ByteView one = take(1);
    return one.empty() ? 0 : one[0];
  }
  ByteView take(std::size_t size) {
    const ByteView taken = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  ByteView rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  ByteView rest_;
};

}  // namespace cohive::fuzz
