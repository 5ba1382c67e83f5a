// cohive-bench cuda on the emulated device: it ends, and says what it is to say. Its figures mean nothing here.
#include "bench/bench.hpp"

#include <gmock/gmock.h>

#include "cohive/codec/codec.hpp"
#include "cuda/emulator/driver.hpp"

namespace cohive::bench {

/// In place of the program's: once.
double rate(std::size_t bytes, double, const std::function<void()>& work) {
  work();
  return static_cast<double>(bytes) / 1e9;
}

namespace {

using testing::IsEmpty;

TEST(CudaBenchmark, MeasuresEveryCodecBesideACopy) {
  const auto result = cuda_kernels(10'000, 0);
  EXPECT_GT(result["copy"], 0);
  EXPECT_EQ(result["codecs"].size(), codec::all_codecs().size() - 1) << "sparse2 stays on the CPU";
  for (const auto& [name, row] : result["codecs"].items())
    for (const char* what : {"encode", "decode", "accumulate"}) {
      EXPECT_GT(row[what]["rate"], 0) << name;
      EXPECT_GT(row[what]["share"], 0) << name;
    }
  for (const char* part : {"sums", "steps_of_parameters"})
    for (const auto& [name, row] : result[part].items()) EXPECT_GT(row["share"], 0) << name;
  EXPECT_EQ(result["codecs"]["FLOAT16"]["goal"], 0.8);
  EXPECT_EQ(result["codecs"]["BLOCKWISE_8BIT"]["goal"], 0.8);
  EXPECT_EQ(result["codecs"]["UNIFORM_8BIT"]["goal"], 0.6);
  EXPECT_EQ(result["reducing_ms"]["FLOAT16"].size(), 3u);
  EXPECT_EQ(result["gradients_to_host"]["goal"], 0.95);
  EXPECT_THAT(cohive::cuda::emulated::take_findings(), IsEmpty());
}

}  // namespace
}  // namespace cohive::bench
