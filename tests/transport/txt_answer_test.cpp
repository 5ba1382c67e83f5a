// Answers of name servers, whole, cut and malformed.
#include "transport/txt_answer.hpp"

#include <gtest/gtest.h>

namespace cohive::transport {
namespace {

using Texts = std::vector<std::string>;

/// A DNS answer to a question for the TXT records of "a.b", byte by byte.
struct Answer {
  Bytes bytes;
  Answer& number(std::size_t value) {
    bytes.push_back(static_cast<std::uint8_t>(value >> 8));
    bytes.push_back(static_cast<std::uint8_t>(value));
    return *this;
  }
  Answer& text(std::string_view more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
    return *this;
  }
  explicit Answer(std::size_t records) {
    number(1).number(0x8180).number(1).number(records).number(0).number(0);  // id, flags, how many of each section
    text(std::string_view("\1a\1b\0", 5)).number(16).number(1);
  }
  /// A TXT record of these data.
  Answer& record(std::string_view data) {
    return number(0xc00c).number(16).number(1).number(0).number(60).number(data.size()).text(data);
  }
};

TEST(TxtAnswer, HasTheTextsOfAllItsRecords) {
  const Answer answer = Answer(2).record("\5hello").record("\3one\3two");
  EXPECT_EQ(texts_of(answer.bytes), (Texts{"hello", "onetwo"}));
}

TEST(TxtAnswer, ThatWasCutHasNone) {
  const Answer answer = Answer(2).record("\5hello").record("\3one\3two");
  for (std::size_t size = 0; size < answer.bytes.size(); ++size) {
    const Bytes cut(answer.bytes.begin(), answer.bytes.begin() + static_cast<std::ptrdiff_t>(size));  // nothing behind
    EXPECT_EQ(texts_of(cut), Texts()) << size;
  }
}

TEST(TxtAnswer, ThatPromisesMoreThanThereIsHasNone) {
  EXPECT_EQ(texts_of(Answer(0xffff).record("\5hello").bytes), Texts());
  Answer longer(1);
  longer.record("\5hello");
  longer.bytes[longer.bytes.size() - 7] = 0xff;  // the length of the record
  EXPECT_EQ(texts_of(longer.bytes), Texts());
}

TEST(TxtAnswer, ATextThatIsLongerThanItsRecordIsLeftOut) {
  EXPECT_EQ(texts_of(Answer(1).record("\x0ahello").bytes), (Texts{""}));
}

TEST(TxtAnswer, HasAFewRecordsAtMost) {
  Answer answer(100);
  for (int i = 0; i < 100; ++i) answer.record("\5hello");
  EXPECT_EQ(texts_of(answer.bytes).size(), 32u);
}

}  // namespace
}  // namespace cohive::transport
