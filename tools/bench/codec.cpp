// Encoding and decoding on one core, in megabytes of float32 per second, beside a plain copy of the same data.
#include <cstring>
#include <functional>

#include "bench/bench.hpp"
#include "cohive/codec/codec.hpp"

namespace cohive::bench {
namespace {

double rate(std::size_t bytes, double seconds, const std::function<void()>& work) {
  work();
  std::size_t rounds = 0;
  const double start = now_seconds();
  do {
    work();
    ++rounds;
  } while (now_seconds() - start < seconds);
  return static_cast<double>(bytes) * static_cast<double>(rounds) / (now_seconds() - start) / 1e6;
}

}  // namespace

nlohmann::json codec(const Settings& settings) {
  const std::size_t count = settings.megabytes * 1'000'000 / 4;
  std::vector<float> values(count), out(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 1000) * 0.01f - 5;
  const double each = settings.seconds / 6;
  nlohmann::json result{{"benchmark", "codec"}, {"megabytes", settings.megabytes}};
  result["copy"] = rate(count * 4, each, [&] { std::memcpy(out.data(), values.data(), count * 4); });
  for (const auto& [name, kind] :
       {std::pair{"none", codec::Codec::none}, std::pair{"float16", codec::Codec::float16}}) {
    const Slice encoded = codec::encode(kind, values);
    result[name]["encode"] = rate(count * 4, each, [&, kind = kind] { (void)codec::encode(kind, values); });
    result[name]["decode"] =
        rate(count * 4, each, [&, kind = kind] { codec::decode(kind, codec::DType::float32, encoded, out).value(); });
    result[name]["accumulate"] = rate(count * 4, each, [&, kind = kind] {
      codec::decode_and_accumulate(kind, codec::DType::float32, encoded, 0.5f, out).value();
    });
  }
  return result;
}

}  // namespace cohive::bench
