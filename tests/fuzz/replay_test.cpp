// Every input that a fuzzer started from or once stumbled over, through the same functions.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "cohive/core/log.hpp"
#include "fuzz.hpp"

namespace cohive::fuzz {
namespace {

const std::filesystem::path kCorpus = COHIVE_FUZZ_CORPUS;

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
    target(bytes);
    ++inputs;
    // Cut short, as a connection that breaks leaves it.
    target(ByteView(bytes).first(bytes.size() / 2));
  }
  EXPECT_GT(inputs, 0u) << "a target without a corpus finds little";
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, target] : targets()) all.push_back(name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus, ::testing::ValuesIn(names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace cohive::fuzz
