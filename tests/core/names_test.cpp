// Names of runs and averagers, and text that peers wrote: what others can read.
#include "cohive/core/names.hpp"

#include <gmock/gmock.h>

namespace cohive {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

TEST(Names, AreReadableEverywhere) {
  for (const char* name : {"run#1", "user/run", "l\xc3\xa4uft", "\xe8\xb5\xb0\xe3\x82\x8b", "\xf0\x9f\x99\x82",
                           "a \"b\" \\ c", "\xc2\xa0"})
    EXPECT_EQ(fault_of_name(name), std::nullopt) << name;
  EXPECT_EQ(fault_of_name(std::string(kMaxRunId, 'x')), std::nullopt);
  EXPECT_THAT(fault_of_name(std::string(kMaxRunId + 1, 'x')), Optional(HasSubstr("256 bytes")));
  EXPECT_EQ(fault_of_name(std::string(kMaxPrefix, 'x'), kMaxPrefix), std::nullopt);
  EXPECT_THAT(fault_of_name(""), Optional(HasSubstr("empty")));
  EXPECT_THAT(fault_of_name("a.b"), Optional(HasSubstr("\".\"")));
  for (const char* name : {"a\nb", "\t", "\x7f", "a\x1b[2J", "\xc2\x85"})
    EXPECT_THAT(fault_of_name(name), Optional(HasSubstr("control"))) << name;
  EXPECT_THAT(fault_of_name(std::string_view("a\0b", 3)), Optional(HasSubstr("control")));
  // A byte alone, one too many, encodings that are too long, surrogates, above U+10FFFF, cut short.
  for (const char* name : {"\xff", "a\x80", "\xc0\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\xe2\x82", "\xf0\x9f\x99"})
    EXPECT_THAT(fault_of_name(name), Optional(HasSubstr("UTF-8"))) << name;
}

TEST(Names, TextOfPeersIsMadePrintable) {
  EXPECT_EQ(printable_text("l\xc3\xa4uft 1.2 \"a\" \\"), "l\xc3\xa4uft 1.2 \"a\" \\");
  EXPECT_EQ(printable_text("a\xff\nb\xed\xa0\x80"), "a\ufffd\ufffdb\ufffd\ufffd\ufffd");
  EXPECT_EQ(printable_text(""), "");
}

}  // namespace
}  // namespace cohive
