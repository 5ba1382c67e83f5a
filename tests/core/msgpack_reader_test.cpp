// Encoded objects, walked over without decoding them.
#include "core/detail/msgpack_reader.hpp"

#include <gtest/gtest.h>

#include "cohive/core/msgpack.hpp"

namespace cohive::msgpack {
namespace {

/// A value of every kind and length form.
std::vector<Value> many_values() {
  std::vector<Value> values{nullptr, true, 5, -5, 200, -200, 70'000, -70'000, 5'000'000'000, -5'000'000'000, 1.5};
  for (std::size_t size : {0u, 1u, 2u, 4u, 8u, 15u, 16u, 31u, 32u, 255u, 256u, 65'535u, 65'536u}) {
    values.emplace_back(std::string(size, 's'));
    values.emplace_back(Bin{std::string(size, 'b')});
    if (size > 0) values.emplace_back(Ext{7, std::string(size, 'e')});
    values.emplace_back(Array{std::vector<Value>(size, Value(1))});
    values.emplace_back(Tuple{std::vector<Value>(size % 100, Value("t"))});
  }
  Map map;
  for (int i = 0; i < 20; ++i) map.entries.emplace_back("key " + std::to_string(i), Array{{i, Map{}}});
  values.emplace_back(map);
  return values;
}

TEST(MsgpackReader, TakesExactlyOneObjectOfEveryKind) {
  for (const Value& value : many_values()) {
    const std::string encoded = encode(value), more = encoded + "behind";
    ByteView rest = as_bytes(more);
    const auto object = take(rest, 1 << 20);
    ASSERT_TRUE(object);
    EXPECT_EQ(as_text(*object), encoded);
    EXPECT_EQ(as_text(rest), "behind");
    for (std::size_t size = 0; size < std::min<std::size_t>(encoded.size(), 300); ++size) {
      ByteView cut = as_bytes(encoded).first(size);
      EXPECT_FALSE(take(cut, 1 << 20)) << "truncated";
      EXPECT_EQ(cut.size(), size) << "nothing is taken";
    }
  }
}

TEST(MsgpackReader, CountsContainersAndWhatTheyHold) {
  const std::string encoded = encode(Array{{1, Array{{2, 3}}, Map{{{"a", 4}}}}});
  ByteView rest = as_bytes(encoded);
  EXPECT_FALSE(take(rest, 7));
  EXPECT_TRUE(take(rest, 8));
}

TEST(MsgpackReader, LiesAboutLengthsTakeNoTime) {
  for (const std::string lie : {"\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff", "\xc6\xff\xff\xff\xff",
                                "\xc9\xff\xff\xff\xff\x01", "\xc1", ""}) {
    ByteView rest = as_bytes(lie);
    EXPECT_FALSE(take(rest, std::size_t{1} << 40));
  }
}

TEST(MsgpackReader, TakesPiecesApart) {
  const std::string list = encode(Array{std::vector<Value>(70'000, Value(1))});
  ByteView rest = as_bytes(list);
  EXPECT_EQ(take_array(rest), 70'000u);
  EXPECT_EQ(rest.size(), 70'000u);
  EXPECT_FALSE(take_array(rest)) << "a number";
  EXPECT_EQ(as_text(*bin_of(as_bytes(encode(Bin{"bytes"})))), "bytes");
  EXPECT_FALSE(bin_of(as_bytes(encode("text"))));
  const std::string tuple = encode(Tuple{{1, 2}});
  const auto ext = extension_of(as_bytes(tuple));
  ASSERT_TRUE(ext);
  EXPECT_EQ(ext->type, 0x40);
  EXPECT_EQ(ext->payload.size(), 3u);
  EXPECT_FALSE(extension_of(as_bytes(tuple + "x"))) << "bytes behind it";
}

}  // namespace
}  // namespace cohive::msgpack
