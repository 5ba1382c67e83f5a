// Hexadecimal, varints, the bases of ids, and shared slices.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "cohive/core/base_encoding.hpp"
#include "cohive/core/bytes.hpp"
#include "cohive/core/varint.hpp"
#include "support/sanitizers.hpp"

namespace cohive {
namespace {

Bytes varint_of(std::uint64_t value) {
  Bytes out;
  append_varint(out, value);
  return out;
}

TEST(Hex, RoundTripsAndRefusesEverythingElse) {
  EXPECT_EQ(to_hex(Bytes{0x00, 0x9f, 0xff}), "009fff");
  EXPECT_EQ(from_hex("009FfF"), (Bytes{0x00, 0x9f, 0xff}));
  for (const char* bad : {"0", "0g", "0x00", "00 ", " 00", "00-1"}) EXPECT_TRUE(from_hex(bad).empty()) << bad;
}

TEST(Varint, EveryLengthRoundTrips) {
  for (int bits = 0; bits < 64; ++bits) {
    for (const std::uint64_t value : {std::uint64_t{1} << bits, (std::uint64_t{1} << bits) - 1}) {
      const Bytes bytes = varint_of(value);
      const Varint read = read_varint(bytes);
      EXPECT_EQ(read.status, VarintStatus::ok);
      EXPECT_EQ(read.value, value);
      EXPECT_EQ(read.size, bytes.size());
      const Varint strict = read_strict_varint(bytes);
      EXPECT_EQ(strict.status, value >> 63 ? VarintStatus::invalid : VarintStatus::ok) << value;
      EXPECT_EQ(read_varint(ByteView(bytes).first(bytes.size() - 1)).status, VarintStatus::incomplete);
    }
  }
  EXPECT_EQ(read_varint(varint_of(~std::uint64_t{0})).value, ~std::uint64_t{0});
}

TEST(Varint, MultiformatsWantTheShortestFormAndProtobufDoesNot) {
  EXPECT_EQ(read_strict_varint(from_hex("8100")).status, VarintStatus::invalid);
  EXPECT_EQ(read_varint(from_hex("8100")).value, 1u);
  EXPECT_EQ(read_strict_varint(from_hex("00")).status, VarintStatus::ok);
}

TEST(Varint, EndlessAndOverflowingNumbersAreInvalidNotIncomplete) {
  EXPECT_EQ(read_strict_varint(Bytes(9, 0xff)).status, VarintStatus::invalid);
  EXPECT_EQ(read_varint(Bytes(10, 0xff)).status, VarintStatus::invalid);
  EXPECT_EQ(read_varint(from_hex("ffffffffffffffffff02")).status, VarintStatus::invalid);
  EXPECT_EQ(read_varint({}).status, VarintStatus::incomplete);
}

TEST(Bases, EncodeAsPublished) {
  EXPECT_EQ(base58_encode(as_bytes("Hello World!")), "2NEpo7TZRRrLZSi2U");
  EXPECT_EQ(base58_encode(from_hex("0000287fb4cd")), "11233QC4");
  EXPECT_EQ(base32_encode(as_bytes("foobar")), "mzxw6ytboi");
  EXPECT_EQ(base32_encode(as_bytes("fooba")), "mzxw6ytb");
  EXPECT_EQ(base36_encode(as_bytes("yes mani !")), "2lcpzo5yikidynfl");
  EXPECT_EQ(base36_encode(from_hex("00")), "0");
}

TEST(Bases, EveryLengthRoundTripsWithLeadingZeros) {
  for (std::size_t size = 0; size < 50; ++size) {
    Bytes data(size);
    for (std::size_t i = size / 3; i < size; ++i) data[i] = static_cast<std::uint8_t>(i * 37 + 1);
    EXPECT_EQ(base58_decode(base58_encode(data)), data);
    EXPECT_EQ(base32_decode(base32_encode(data)), data);
    EXPECT_EQ(base36_decode(base36_encode(data)), data);
  }
}

TEST(Bases, RefuseForeignCharactersStrayBitsAndEndlessText) {
  for (const char* bad : {"0", "O", "I", "l", "1 ", "Qm\n"}) EXPECT_FALSE(base58_decode(bad)) << bad;
  for (const char* bad : {"MZXW", "mz=", "1", "a", "mzxw6ytbo", "mzxw6ytboj"}) EXPECT_FALSE(base32_decode(bad)) << bad;
  for (const char* bad : {"A", "-"}) EXPECT_FALSE(base36_decode(bad)) << bad;
  const std::string endless(100'000, 'z');
  EXPECT_FALSE(base58_decode(endless));
  EXPECT_FALSE(base32_decode(endless));
  EXPECT_FALSE(base36_decode(endless));
}

TEST(Slice, SharesOneBlockUntilTheLastOwnerLeaves) {
  Slice whole = Slice::copy_of(as_bytes("hello world"));
  EXPECT_TRUE(whole.unique());
  Slice tail = whole.sub(6, 5);
  EXPECT_FALSE(whole.unique());
  EXPECT_EQ(tail.data(), whole.data() + 6);
  whole = Slice();
  EXPECT_TRUE(tail.unique());
  EXPECT_EQ(as_text(tail), "world");
  tail.remove_prefix(3);
  EXPECT_EQ(as_text(tail), "ld");
}

/// Of this process, in MiB.
double resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
  return 0;
}

TEST(Slice, LargeOnesTakeNoMemoryForZerosAndLeaveNoneBehind) {
#if COHIVE_SANITIZER
  GTEST_SKIP() << "sanitizers keep what is freed";
#endif
  constexpr std::size_t kMegabyte = 1 << 20;
  Bytes bytes(64 * kMegabyte);
  const double before = resident();
  Slice copy = Slice::copy_of(bytes);
  EXPECT_TRUE(std::ranges::equal(copy.view(), bytes));
  EXPECT_LT(resident(), before + 4);
  for (const std::size_t at : {std::size_t{0}, 20 * kMegabyte + 17, bytes.size() - 1}) bytes[at] = 7;
  copy = Slice::copy_of(bytes);
  EXPECT_TRUE(std::ranges::equal(copy.view(), bytes));
  EXPECT_LT(resident(), before + 10);  // where huge pages are used for all memory each takes 2
  std::ranges::fill(bytes, std::uint8_t{3});
  copy = Slice::copy_of(bytes);
  EXPECT_TRUE(std::ranges::equal(copy.view(), bytes));
  EXPECT_GT(resident(), before + 60);
  copy = Slice();
  EXPECT_LT(resident(), before + 4);
}

TEST(Slice, AnEmptyCopyIsEmpty) {
  const Slice slice = Slice::copy_of({});
  EXPECT_TRUE(slice.empty());
  EXPECT_TRUE(Slice().view().empty());
}

}  // namespace
}  // namespace cohive
