// Tensors of 16 bits are read, widened and encoded in one pass, and decoded as the CPU decodes them.
#include "codec_fixture.hpp"

namespace cohive::cuda {
namespace {

using CodecsOf16Bits = CodecsOnDevice;

const std::vector<std::size_t> kSomeSizes = {0, 1, 3, 64, 4095, 4097, 65'539};

TEST_F(CodecsOf16Bits, EncodeToTheBytesOfTheCpu) {
  for (const DType dtype : {DType::float16, DType::bfloat16})
    for (const CodecSpec& spec : kAllCodecs)
      for (const std::size_t size : kSomeSizes) {
        const bool empty = size == 0 && (spec.codec == Codec::uniform8 || spec.codec == Codec::quantile8);
        if (!can_encode(spec.codec, dtype) || empty) continue;
        SCOPED_TRACE(std::string(name_of(spec.codec)) + " of " + std::to_string(size) + " " +
                     std::string(name_of(dtype)));
        const Typed values = random_typed(dtype, size);
        ASSERT_NO_FATAL_FAILURE(expect_same_buffer(spec.codec, on_gpu(spec, values), on_cpu(spec, values)));
      }
}

TEST_F(CodecsOf16Bits, DecodeToTheValuesOfTheCpu) {
  for (const DType dtype : {DType::float16, DType::bfloat16})
    for (const CodecSpec& spec : kAllCodecs)
      for (const std::size_t size : kSomeSizes) {
        if (!can_decode(spec.codec, dtype)) continue;
        SCOPED_TRACE(std::string(name_of(spec.codec)) + " of " + std::to_string(size) + " " +
                     std::string(name_of(dtype)));
        // As a peer sends them that has float32 values, too.
        if (spec.codec != Codec::none) expect_decodes_alike(spec.codec, on_cpu(spec, normal_values(size)), size, dtype);
        if (size > 0) expect_decodes_alike(spec.codec, on_cpu(spec, random_typed(dtype, size)), size, dtype);
      }
}

/// bfloat16 travels as float32, or as it is.
TEST_F(CodecsOf16Bits, DecodeBothFormsOfBfloats) {
  const Typed values = random_typed(DType::bfloat16, 1001);
  expect_decodes_alike(Codec::none, values.bytes, 1001, DType::bfloat16);
  expect_decodes_alike(Codec::none, on_cpu(Codec::none, values), 1001, DType::bfloat16);
}

TEST_F(CodecsOf16Bits, RefuseWhatStaysOnTheCpu) {
  const auto memory = to_device(Bytes(4096));
  const DeviceValues values(DType::bfloat16, memory.bytes().data(), 10);
  const std::error_code invalid = cohive::Errc::invalid_argument;
  EXPECT_EQ(encode_async(stream(), Codec::float16, values, memory.bytes().subspan(1024, 20)).error(), invalid);
  EXPECT_EQ(
      decode_async(stream(), Codec::meanstd16, memory.bytes().first(28), memory.floats().last(10), DType::bfloat16)
          .error(),
      invalid);
}

}  // namespace
}  // namespace cohive::cuda
