// What Python hivemind made of many tensors (tests/data/make_codec_vectors.py), against ours.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "codec/detail/dynamic_map.hpp"
#include "codec/detail/values.hpp"
#include "cohive/codec/codec.hpp"
#include "cohive/codec/decoder.hpp"
#include "cohive/core/crypto.hpp"
#include "cohive/proto/runtime.pb.h"

namespace cohive::codec {
namespace {

struct Vector {
  std::string name;
  Codec codec;
  Tensor tensor;          ///< what was encoded
  proto::Tensor message;  ///< what hivemind made of it
  Bytes wire;             ///< the same, serialised
  Bytes decoded;          ///< what hivemind decodes, or its hash
  std::string decoded_sha256;

  ByteView buffer() const { return as_bytes(message.buffer()); }
  std::size_t count() const { return element_count(tensor.shape).value(); }
};

/// The generator of make_codec_vectors.py.
Slice generated(DType dtype, std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u + seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    const auto sum = (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
    values[i] = static_cast<float>((static_cast<double>(sum) - 131070.0) / 32768.0);
  }
  Slice bytes = Slice::uninitialised(count * size_of(dtype));
  narrow(dtype, values.data(), bytes.mutable_data(), count);
  return bytes;
}

std::vector<Vector> load() {
  const std::string base = std::string(COHIVE_TEST_DATA) + "/codec_vectors.";
  std::ifstream blob_file(base + "bin", std::ios::binary), index_file(base + "json");
  const std::string blob{std::istreambuf_iterator<char>(blob_file), {}};
  std::vector<Vector> vectors;
  const auto index = nlohmann::json::parse(index_file);
  for (const auto& entry : index.at("vectors")) {
    const auto bytes = [&](const char* field) {
      return to_bytes(blob.substr(entry.at(field).at(0).get<std::size_t>(), entry.at(field).at(1).get<std::size_t>()));
    };
    Vector vector;
    vector.name = entry.at("name").get<std::string>();
    vector.codec = codec_from_wire(entry.at("compression").get<int>()).value();
    vector.tensor.dtype = dtype_from_name(entry.at("dtype").get<std::string>()).value();
    vector.tensor.shape = entry.at("shape").get<Shape>();
    vector.tensor.requires_grad = entry.at("requires_grad").get<bool>();
    vector.tensor.data = entry.contains("input") ? Slice::copy_of(bytes("input"))
                                                 : generated(vector.tensor.dtype, vector.count(),
                                                             entry.at("generated").get<std::uint64_t>());
    vector.wire = bytes("message");
    EXPECT_TRUE(vector.message.ParseFromArray(vector.wire.data(), static_cast<int>(vector.wire.size())));
    if (entry.contains("decoded")) vector.decoded = bytes("decoded");
    vector.decoded_sha256 = entry.value("decoded_sha256", "");
    vectors.push_back(std::move(vector));
  }
  return vectors;
}

const std::vector<Vector>& vectors() {
  static const std::vector<Vector> all = load();
  return all;
}

std::vector<float> floats(DType dtype, ByteView bytes) {
  std::vector<float> values(bytes.size() / size_of(dtype));
  widen(dtype, bytes.data(), values.data(), values.size());
  return values;
}

bool scales_are_broken(const Vector& vector) {
  return vector.codec == Codec::meanstd16 &&
         (vector.name.find("infinit") != std::string::npos || vector.name.find("not a number") != std::string::npos);
}

Result<Tensor> decoded(const Vector& vector, ByteView buffer) {
  return decode_tensor(vector.codec, vector.tensor.dtype, vector.tensor.shape, vector.tensor.requires_grad, buffer);
}

/// Equal bits, except that any NaN equals any other.
void expect_same_values(const Vector& vector, const Tensor& ours) {
  const bool converted = vector.codec != Codec::none || vector.tensor.dtype == DType::bfloat16;
  if (converted && is_floating(vector.tensor.dtype) && !vector.decoded.empty()) {
    const auto mine = floats(ours.dtype, ours.data), theirs = floats(ours.dtype, vector.decoded);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (std::isnan(mine[i]) && std::isnan(theirs[i])) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(mine[i]), std::bit_cast<std::uint32_t>(theirs[i]))
          << i << " " << mine[i] << " " << theirs[i];
    }
    return;
  }
  if (vector.decoded_sha256.empty()) {
    EXPECT_EQ(to_hex(ours.data), to_hex(vector.decoded));
  } else {
    EXPECT_EQ(to_hex(crypto::sha256(ours.data)), vector.decoded_sha256);
  }
}

TEST(CodecVectors, CoverEveryCodecAndEveryDtypeItTakes) {
  std::map<std::pair<Codec, DType>, int> seen;
  for (const Vector& vector : vectors()) ++seen[{vector.codec, vector.tensor.dtype}];
  EXPECT_EQ(seen.size(), 12u + 3 + 3 + 4 + 4 + 4);
}

TEST(CodecVectors, WhatPythonEncodedDecodesToThePythonBits) {
  for (const Vector& vector : vectors()) {
    SCOPED_TRACE(vector.name);
    const auto ours = decoded(vector, vector.buffer());
    if (scales_are_broken(vector)) {
      EXPECT_FALSE(ours);
      continue;
    }
    ASSERT_TRUE(ours) << ours.error();
    expect_same_values(vector, *ours);
    EXPECT_EQ(ours->requires_grad, vector.message.requires_grad());
    if (HasFailure()) break;
  }
}

TEST(CodecVectors, DecodingToFloat32AndAccumulatingGiveThosePythonValuesToo) {
  for (const Vector& vector : vectors()) {
    if (!is_floating(vector.tensor.dtype) || scales_are_broken(vector)) continue;
    SCOPED_TRACE(vector.name);
    const auto whole = decoded(vector, vector.buffer());
    ASSERT_TRUE(whole);
    const auto expected = floats(whole->dtype, whole->data);
    std::vector<float> values(expected.size()), sum(expected.size(), 1.0f);
    ASSERT_TRUE(decode(vector.codec, vector.tensor.dtype, vector.buffer(), values));
    ASSERT_TRUE(decode_and_accumulate(vector.codec, vector.tensor.dtype, vector.buffer(), 0.25f, sum));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(expected[i])) {
        ASSERT_TRUE(std::isnan(values[i]) && std::isnan(sum[i])) << i;
        continue;
      }
      ASSERT_EQ(values[i], expected[i]) << i;
      ASSERT_EQ(sum[i], 1.0f + 0.25f * expected[i]) << i;
    }
  }
}

TEST(CodecVectors, EncodingIsByteForByteWhatPythonSendsWherePythonDoesNotRoundSums) {
  for (const Vector& vector : vectors()) {
    if (vector.codec != Codec::none && vector.codec != Codec::float16 && vector.codec != Codec::blockwise8) continue;
    SCOPED_TRACE(vector.name);
    if (vector.codec == Codec::none && vector.tensor.dtype == DType::bfloat16 && vector.count() > 0 &&
        vector.buffer().size() == vector.count() * 2)
      continue;  // Python told not to be compatible
    ASSERT_EQ(codec_for(vector.codec, vector.tensor.dtype, vector.tensor.shape), vector.codec);
    const auto ours = encode_tensor(vector.codec, vector.tensor);
    ASSERT_TRUE(ours) << ours.error();
    ASSERT_EQ(to_hex(*ours), to_hex(vector.buffer()));
    proto::Tensor message;
    message.set_buffer(ours->data(), ours->size());
    for (std::uint32_t size : vector.tensor.shape) message.add_size(size);
    message.set_requires_grad(vector.tensor.requires_grad);
    message.set_dtype(std::string(name_of(vector.tensor.dtype)));
    message.set_compression(static_cast<proto::CompressionType>(vector.codec));
    EXPECT_EQ(to_hex(as_bytes(message.SerializeAsString())), to_hex(vector.wire));
  }
}

TEST(CodecVectors, QuantilesChooseTheSameBinForEveryValueAndNearlyTheSameAverages) {
  for (const Vector& vector : vectors()) {
    if (vector.codec != Codec::quantile8) continue;
    SCOPED_TRACE(vector.name);
    const auto ours = encode_tensor(vector.codec, vector.tensor);
    ASSERT_TRUE(ours);
    const ByteView mine = ours->view(), theirs = vector.buffer();
    ASSERT_EQ(mine.size(), theirs.size());
    ASSERT_EQ(to_hex(mine.first(8)), to_hex(theirs.first(8)));
    EXPECT_TRUE(std::equal(mine.begin() + 1032, mine.end(), theirs.begin() + 1032));
    const auto book = floats(DType::float32, mine.subspan(8, 1024)),
               other = floats(DType::float32, theirs.subspan(8, 1024));
    for (std::size_t i = 0; i < book.size(); ++i) {
      if (std::isnan(other[i]))
        EXPECT_TRUE(std::isnan(book[i]));
      else if (std::isfinite(other[i]))
        EXPECT_NEAR(book[i], other[i], std::fabs(other[i]) * 2e-5f) << i;
    }
  }
}

/// Largest and mean square distance between two tensors of one shape, over the largest finite magnitude.
struct Distance {
  double largest = 0, mean_square = 0, magnitude = 0;
};
Distance distance(const std::vector<float>& a, const std::vector<float>& b) {
  Distance result;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i]) || a[i] == b[i]) {
      EXPECT_EQ(std::isnan(a[i]), std::isnan(b[i])) << i;
      result.magnitude = std::max(result.magnitude, static_cast<double>(std::fabs(a[i])));
      continue;
    }
    const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    result.largest = std::max(result.largest, d);
    result.mean_square += d * d / static_cast<double>(a.size());
    result.magnitude = std::max(result.magnitude, static_cast<double>(std::fabs(b[i])));
  }
  return result;
}

TEST(CodecVectors, MeanAndDeviationScalingDecodesToWhatPythonsDoesWithinOneHalf) {
  for (const Vector& vector : vectors()) {
    if (vector.codec != Codec::meanstd16 || scales_are_broken(vector)) continue;
    SCOPED_TRACE(vector.name);
    const auto ours = encode_tensor(vector.codec, vector.tensor);
    ASSERT_TRUE(ours);
    ASSERT_EQ(ours->size(), vector.buffer().size());
    if (vector.count() == 0) {
      EXPECT_EQ(to_hex(*ours), to_hex(vector.buffer()));
      continue;
    }
    const auto mine = decoded(vector, *ours), theirs = decoded(vector, vector.buffer());
    ASSERT_TRUE(mine && theirs);
    const DType dtype = vector.tensor.dtype;
    const auto apart = distance(floats(dtype, mine->data), floats(dtype, theirs->data));
    EXPECT_LE(apart.largest, apart.magnitude * 0x1p-10 + 1e-9);
    const auto input = floats(dtype, vector.tensor.data);
    EXPECT_LE(distance(floats(dtype, mine->data), input).mean_square,
              distance(floats(dtype, theirs->data), input).mean_square * 1.01 + 1e-18);
  }
}

TEST(CodecVectors, UniformBinsAgreeButForValuesOnTheEdgeOfTwo) {
  for (const Vector& vector : vectors()) {
    if (vector.codec != Codec::uniform8) continue;
    SCOPED_TRACE(vector.name);
    const auto ours = encode_tensor(vector.codec, vector.tensor);
    ASSERT_TRUE(ours);
    const ByteView mine = ours->view(), theirs = vector.buffer();
    ASSERT_EQ(mine.size(), theirs.size());
    ASSERT_EQ(to_hex(mine.first(8)), to_hex(theirs.first(8)));
    const DType dtype = vector.tensor.dtype;
    const auto back = floats(dtype, decoded(vector, mine).value().data);
    const auto other = floats(dtype, decoded(vector, theirs).value().data);
    if (vector.name.find("constant") != std::string::npos) {  // the one bin in use is a matter of rounding
      EXPECT_LE(distance(back, other).largest, 1e-7);
      continue;
    }
    std::size_t different = 0;
    for (std::size_t i = 1032; i < mine.size(); ++i) {
      ASSERT_LE(std::abs(mine[i] - theirs[i]), 1) << i - 1032;
      different += mine[i] != theirs[i];
    }
    EXPECT_LE(different, vector.count() / 1000);
    const auto input = floats(dtype, vector.tensor.data);
    if (!std::all_of(input.begin(), input.end(), [](float value) { return std::isfinite(value); })) {
      EXPECT_EQ(distance(back, other).largest, 0);
      continue;
    }
    const auto error = distance(back, input), error_of_python = distance(other, input);
    if (different == 0) EXPECT_LE(distance(back, other).largest, error.magnitude * 1e-3);
    EXPECT_LE(error.mean_square, error_of_python.mean_square * 1.001 + 1e-12 * error.magnitude * error.magnitude);
  }
}

TEST(CodecVectors, TheBlockwiseCodeBookIsTheOneOfBitsandbytes) {
  const CodeBook& book = dynamic_map();
  EXPECT_EQ(to_hex(crypto::sha256(ByteView(reinterpret_cast<const std::uint8_t*>(book.data()), sizeof book))),
            "f038edd7b8f78ba3e22cb68ec675d983218a8618ca53223da0a6bb6ca77657f8");
}

}  // namespace
}  // namespace cohive::codec
