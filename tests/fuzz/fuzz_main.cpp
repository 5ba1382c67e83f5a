// What libFuzzer calls: the one target of this program.
#include "cohive/core/log.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  cohive::log::configure({cohive::log::Level::off, cohive::log::Format::text});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cohive::fuzz::targets().begin()->second({data, size});
  return 0;
}
