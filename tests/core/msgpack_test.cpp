#include "cohive/core/msgpack.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "cohive/core/errors.hpp"

namespace cohive::msgpack {
namespace {

std::string hex(const Value& value) {
  return to_hex(as_bytes(encode(value)));
}

TEST(Msgpack, EncodesAsPythonHivemindDoes) {
  EXPECT_EQ(hex(Tuple{{1, "a", Tuple{{2}}}}), "d7409301a161d5409102");
  EXPECT_EQ(hex(Tuple{{"a", 1}}), "d64092a16101");
  EXPECT_EQ(hex(std::numeric_limits<double>::infinity()), "cb7ff0000000000000");
  EXPECT_EQ(hex(-33), "d0df");
  EXPECT_EQ(hex(65536), "ce00010000");
  EXPECT_EQ(hex(std::int64_t{1} << 32), "cf0000000100000000");
  EXPECT_EQ(hex(INT32_MIN), "d280000000");
  EXPECT_EQ(hex(Array{{1, 2.5, Value(), true}}), "9401cb4004000000000000c0c3");
  EXPECT_EQ(hex(Bin{"raw"}), "c403726177");
  EXPECT_EQ(hex(Map{{{"i", 1}}}), "81a16901");
}

TEST(Msgpack, RoundTripsEveryKind) {
  const Value value = Map{{{"list", Array{{-1, 0, 127, 128, 70000, -70000, 1.5, false, Value()}}},
                           {Bin{"key"}, Tuple{{Bin{std::string(300, 'x')}, std::string(40, 'y')}}},
                           {"ext", Ext{0x51, "payload"}}}};
  EXPECT_EQ(decode(as_bytes(encode(value))).value(), value);
}

TEST(Msgpack, TuplesMayBeNested) {
  const auto nested = [](int levels) {
    Value value = Array{{1, "a"}};
    for (int i = 0; i < levels; ++i) value = Tuple{{value, std::string(static_cast<std::size_t>(i) * 40, 'x')}};
    return value;
  };
  EXPECT_EQ(decode(as_bytes(encode(nested(30)))).value(), nested(30));
  EXPECT_FALSE(decode(as_bytes(encode(nested(40)))));
}

TEST(Msgpack, DecodesNoMoreValuesThanItMay) {
  const auto bytes = encode(Array{{1, Tuple{{2, 3}}, Map{{{"key", 4}}}}});  // 8 values
  EXPECT_TRUE(decode(as_bytes(bytes), 8));
  const auto refused = decode(as_bytes(bytes), 7);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), Errc::limit_exceeded);
}

TEST(Msgpack, RefusesMalformedInput) {
  for (const char* bad : {"", "c1", "d9", "a561", "92c0", "c0c0", "81c0c0", "ddffffffff", "c9ffffffff40", "dfffffffff",
                          "d54093", "cb00", "d440c0", "d54090c0", "d440dc", "c70540dd00000001", "a1ff"})
    EXPECT_FALSE(decode(from_hex(bad))) << bad;
  EXPECT_FALSE(decode(Bytes(1000, 0x91))) << "endless nesting";
}

TEST(Msgpack, TextsAreUtf8AndBytesAreAnything) {
  const std::string text = "of all l\xc3\xa4nder, \xe8\xb5\xb0\xe3\x82\x8b \xf0\x9f\x99\x82";
  for (std::size_t size = 0; size < 20; ++size) {
    const Value value = Array{{std::string(size, 'x') + text, Bin{text + "\xff"}}};
    EXPECT_EQ(decode(as_bytes(encode(value))).value(), value);
    EXPECT_FALSE(decode(as_bytes(encode(std::string(size, 'x') + text + "\xff"))));
  }
  for (const char* bad : {"d901ff", "a2c080", "a3eda080", "a9616263646566c3c3a4", "81a1ffc0", "c7034091a1ff"})
    EXPECT_FALSE(decode(from_hex(bad))) << bad;
}

}  // namespace
}  // namespace cohive::msgpack
