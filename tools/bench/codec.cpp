// Encoding, decoding and accumulating on one core, in gigabytes of float32 per second, beside a plain copy of the same
// data. The memory bandwidth is what that copy reads and writes.
#include <algorithm>
#include <cmath>
#include <random>

#include "bench/bench.hpp"
#include "cohive/codec/codec.hpp"

namespace cohive::bench {
namespace {}  // namespace

nlohmann::json codec(const Settings& settings) {
  const std::size_t count = settings.megabytes * 1'000'000 / 4, bytes = count * 4;
  std::vector<float> values(count), out(count);
  std::mt19937 random(7348);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  const double each = settings.seconds / 6;
  nlohmann::json result{
      {"benchmark", "codec"}, {"megabytes", settings.megabytes}, {"unit", "GB of float32 per second"}};
  const double copy = copy_rate(values, out, each);
  result["copy"] = copy;
  for (const codec::CodecInfo& info : codec::all_codecs()) {
    const codec::Codec kind = info.codec;
    auto& row = result["codecs"][std::string(info.name)];
    const Slice encoded = codec::encode(kind, values);
    row["bytes"] = encoded.size();
    row["encode"] = rate(bytes, each, [&] { (void)codec::encode(kind, values); });
    row["decode"] = rate(bytes, each, [&] { codec::decode(kind, codec::DType::float32, encoded, out).value(); });
    double error = 0;
    for (std::size_t i = 0; i < count; ++i) error += std::pow(static_cast<double>(out[i] - values[i]), 2);
    row["mean_square_error"] = error / static_cast<double>(count);
    row["accumulate"] = rate(
        bytes, each, [&] { codec::decode_and_accumulate(kind, codec::DType::float32, encoded, 0.5f, out).value(); });
    std::fill(out.begin(), out.end(), 0.0f);
  }
  // A copy moves 8 bytes for each value, a conversion to halves 6.
  result["float16_share_of_memory_bandwidth"] = result["codecs"]["FLOAT16"]["encode"].get<double>() * 6 / (copy * 8);
  return result;
}

}  // namespace cohive::bench
