// Error feedback: what is owed is added, and what the codec loses is left, as codec::Residuals has it.
#include "codec_fixture.hpp"
#include "cohive/codec/residuals.hpp"

namespace cohive::cuda {
namespace {

class Feedback : public CodecsOnDevice {
 protected:
  /// Several rounds of a tensor, each with what the one before has left.
  void expect_residuals_of_the_cpu(CodecSpec spec, std::size_t size) {
    codec::Residuals residuals(size);
    const auto left = to_device(std::vector<float>(size, 0));
    const auto scratch = DeviceBuffer::create(scratch_size(spec.codec, size)).value();
    const auto out = DeviceBuffer::create(*encoded_size(spec, size)).value();
    for (unsigned round = 0; round < 3; ++round) {
      const auto values = normal_values(size, round);
      std::vector<float> corrected(size);
      residuals.correct(0, values, corrected);
      const Bytes cpu = on_cpu(spec, corrected);
      ASSERT_TRUE(residuals.commit(spec.codec, 0, values, cpu));
      const auto in = to_device(values);
      const EncodeMemory memory{.scratch = scratch.bytes(), .owed = left.floats(), .left = left.floats()};
      ASSERT_TRUE(encode_async(stream(), spec, in.floats(), out.bytes(), memory));
      EXPECT_EQ(to_host<std::uint8_t>(out), cpu);
      expect_same(to_host<float>(left), residuals.values());
    }
  }
};

const std::vector<CodecSpec> kFedBack = {Codec::block4, Codec::top_k, {Codec::top_k, 0.3}, {Codec::top_k, 1.0}};

TEST_F(Feedback, LeavesWhatTheCpuOwes) {
  for (const CodecSpec& spec : kFedBack)
    for (const std::size_t size : {1, 3, 63, 65, 4095, 4097, 65'539}) {
      SCOPED_TRACE(std::string(name_of(spec.codec)) + " of " + std::to_string(size));
      ASSERT_NO_FATAL_FAILURE(expect_residuals_of_the_cpu(spec, size));
    }
}

/// What is owed changes when the buffer was delivered: no sooner, and not without it.
TEST_F(Feedback, LeavesWhatIsOwedAloneUnlessAsked) {
  constexpr std::size_t kCount = 10'001;
  const auto values = normal_values(kCount, 5), before = normal_values(kCount, 6);
  const auto in = to_device(values), owed = to_device(before);
  for (const CodecSpec& spec : kFedBack) {
    SCOPED_TRACE(name_of(spec.codec));
    codec::Residuals residuals(kCount);
    residuals.replace(before);
    std::vector<float> corrected(kCount);
    residuals.correct(0, values, corrected);
    const auto scratch = DeviceBuffer::create(scratch_size(spec.codec, kCount)).value();
    const auto out = DeviceBuffer::create(*encoded_size(spec, kCount)).value();
    ASSERT_TRUE(
        encode_async(stream(), spec, in.floats(), out.bytes(), {.scratch = scratch.bytes(), .owed = owed.floats()}));
    const Bytes encoded = to_host<std::uint8_t>(out);
    EXPECT_EQ(encoded, on_cpu(spec, corrected));
    EXPECT_EQ(to_host<float>(owed), before);
    // It was delivered.
    ASSERT_TRUE(residuals.commit(spec.codec, 0, values, encoded));
    const auto left = to_device(before);
    ASSERT_TRUE(add_async(stream(), in.floats(), 1, left.floats()));
    ASSERT_TRUE(accumulate_async(stream(), spec.codec, out.bytes(), -1, left.floats()));
    expect_same(to_host<float>(left), residuals.values());
  }
}

/// Each of both is finite, and so is all that is kept.
TEST_F(Feedback, SeesASumThatIsNotFinite) {
  std::vector<float> values(1000, 3e38f), before(1000, 0);
  const auto in = to_device(values);
  for (const CodecSpec& spec : kFedBack)
    for (const bool sick : {false, true}) {
      before[999] = sick ? 3e38f : 0;
      const auto owed = to_device(before), found = to_device(std::vector<std::uint32_t>{0});
      const auto scratch = DeviceBuffer::create(scratch_size(spec.codec, values.size())).value();
      const auto out = DeviceBuffer::create(*encoded_size(spec, values.size())).value();
      const EncodeMemory memory{.scratch = scratch.bytes(),
                                .owed = owed.floats(),
                                .found = reinterpret_cast<std::uint32_t*>(found.bytes().data())};
      ASSERT_TRUE(encode_async(stream(), spec, in.floats(), out.bytes(), memory));
      EXPECT_EQ(to_host<std::uint32_t>(found).front(), sick ? 1u : 0u) << name_of(spec.codec);
    }
}

TEST_F(Feedback, IsRefusedWhereItMeansNothing) {
  const auto memory = to_device(normal_values(100));
  const auto out = DeviceBuffer::create(4096).value();
  const std::error_code invalid = cohive::Errc::invalid_argument;
  const auto encode = [&](Codec codec, const EncodeMemory& with) {
    return encode_async(stream(), codec, memory.floats(), out.bytes().first(*encoded_size(codec, 100)), with).error();
  };
  EXPECT_EQ(encode(Codec::float16, {.owed = memory.floats()}), invalid);
  EXPECT_EQ(encode(Codec::none, {.left = memory.floats()}), invalid);
  EXPECT_EQ(encode(Codec::block4, {.owed = memory.floats().first(99)}), invalid);
  EXPECT_EQ(encode(Codec::block4, {.left = memory.floats().first(99)}), invalid);
}

}  // namespace
}  // namespace cohive::cuda
