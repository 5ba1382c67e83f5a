// Every input that a fuzzer started from or once stumbled over, through the same functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "cohive/core/log.hpp"
#include "run.hpp"
#include "support/sanitizers.hpp"

namespace cohive::fuzz {
namespace {

const std::filesystem::path kCorpus = COHIVE_FUZZ_CORPUS;
constexpr std::size_t kLongest = 16 << 20, kLong = 256 << 10;  // as long as the frames of streaming calls; shorter
constexpr std::size_t kRepeated = kSanitized ? 8 : 32;         // inputs of a target
constexpr int kLongestPart = 7;                                // as a power of two

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Corpus : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { log::configure({log::Level::off, log::Format::text}); }
};

TEST_P(Corpus, BreaksNoPromise) {
  const auto target = targets().at(GetParam());
  std::size_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus / GetParam())) {
    SCOPED_TRACE(entry.path().filename().string());
    const Bytes bytes = read_file(entry.path());
    run(target, bytes);
    ++inputs;
    // Cut short, as a connection that breaks leaves it.
    run(target, ByteView(bytes).first(bytes.size() / 2));
  }
  EXPECT_GT(inputs, 0u) << "a target without a corpus finds little";
}

TEST_P(Corpus, TakesMemoryInProportionWhereFramesAreFull) {
  const auto target = targets().at(GetParam());
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus / GetParam())) files.push_back(entry.path());
  std::ranges::sort(files);
  for (const auto& file : files)
    for (const std::size_t length : {1, 2, 6}) {  // a last field without content, or with a little
      SCOPED_TRACE(file.filename().string() + ", its last " + std::to_string(length) + " bytes");
      const Bytes bytes = read_file(file);
      run(target, repeated(bytes, bytes.size() - std::min(bytes.size(), length), length, kLong));
    }
  std::minstd_rand random(1);
  for (std::size_t i = 0; i < kRepeated; ++i) {
    const auto& file = files[i % files.size()];
    const Bytes bytes = read_file(file);
    if (bytes.empty()) continue;
    const std::size_t from = random() % bytes.size(), length = std::size_t{1} << random() % kLongestPart;
    SCOPED_TRACE(file.filename().string() + " from " + std::to_string(from) + ", " + std::to_string(length) + " bytes");
    run(target, repeated(bytes, from, length, i == 0 && !kSanitized ? kLongest : kLong));
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, target] : targets()) all.push_back(name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus, ::testing::ValuesIn(names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace cohive::fuzz
