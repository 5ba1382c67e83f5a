// What libFuzzer calls: the one target of this program.
#include <random>

#include "cohive/core/log.hpp"
#include "run.hpp"

namespace {

constexpr unsigned kRepeatOneIn = 200;
constexpr std::size_t kLongestPart = 64;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  cohive::log::configure({cohive::log::Level::off, cohive::log::Format::text});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cohive::fuzz::run(cohive::fuzz::targets().begin()->second, {data, size});
  return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

/// Frames may have 16 MiB, which single mutations never reach: now and then a part of an input fills a long one.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  std::minstd_rand random(seed);
  if (size == 0 || random() % kRepeatOneIn != 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::size_t from = random() % size, length = 1 + random() % kLongestPart;
  const std::size_t wanted = std::max<std::size_t>(1, max_size >> random() % 12);
  const cohive::Bytes longer = cohive::fuzz::repeated({data, size}, from, length, wanted);
  const std::size_t taken = std::min(longer.size(), max_size);
  std::copy_n(longer.begin(), taken, data);
  return taken;
}
