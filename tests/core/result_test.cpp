// Errors that name the peer and the stage, and what asking a failed result does.
#include "cohive/core/result.hpp"

#include <gtest/gtest.h>

#include <set>

#include "cohive/core/error_category.hpp"
#include "cohive/core/errors.hpp"
#include "core/vectors.hpp"

namespace cohive {
namespace {

using testing::kPeer;

TEST(ErrorTest, ReadsAsOneSentence) {
  EXPECT_EQ(Error(Errc::timeout).message(), "timed out");
  EXPECT_EQ(Error(Errc::timeout, "dialling").message(), "dialling: timed out");
  EXPECT_EQ(Error(Errc::reset, kPeer, "ping").message(), "ping: reset by the other side (peer " + kPeer.text() + ")");
}

TEST(ErrorTest, GathersContextAndKeepsItsPeerAndCode) {
  const Error error = Error(Errc::malformed, "frame").with_peer(kPeer).with_context("yamux");
  EXPECT_EQ(error.message(), "yamux: frame: malformed data (peer " + kPeer.text() + ")");
  EXPECT_EQ(error, Errc::malformed);
  ASSERT_NE(error.peer(), nullptr);
  EXPECT_EQ(*error.peer(), kPeer);
  EXPECT_EQ(error.detail(), "yamux: frame");
  EXPECT_EQ(Error(Errc::closed).with_context("host").message(), "host: closed");
  EXPECT_EQ(Error(Errc::closed).peer(), nullptr);
  EXPECT_TRUE(Error(Errc::closed).detail().empty());
}

TEST(ErrorTest, EveryCodeHasItsOwnSentence) {
  std::set<std::string> sentences;
  for (int code = static_cast<int>(Errc::timeout); code <= static_cast<int>(Errc::internal); ++code)
    sentences.insert(core_category().message(code));
  EXPECT_EQ(sentences.size(), static_cast<std::size_t>(Errc::internal));
  EXPECT_FALSE(sentences.contains(core_category().message(9999)));
}

enum class Weather { rain = 1, snow };
constexpr ErrorSentence<Weather> kWeather[] = {{Weather::rain, "it rains"}, {Weather::snow, "it snows"}};

TEST(ErrorCategoryTest, SpeaksFromItsTable) {
  static const ErrorCategory<kWeather> category("weather");
  EXPECT_STREQ(category.name(), "weather");
  EXPECT_EQ(category.message(static_cast<int>(Weather::snow)), "it snows");
  for (const int unknown : {0, 3, -1}) EXPECT_EQ(category.message(unknown).find("unknown error"), 0u) << unknown;
}

TEST(ErrorTest, KeepsWhatTheSystemSaidWhateverIsPutBeforeIt) {
  const Error refused = system_error(Errc::io, ECONNREFUSED, "10.0.0.1");
  EXPECT_EQ(refused.system(), std::errc::connection_refused);
  EXPECT_EQ(refused.detail(), "10.0.0.1: Connection refused");
  const Error changed = refused.with_context("while joining").with_peer(PeerId());
  EXPECT_EQ(changed.system(), std::errc::connection_refused);
  EXPECT_EQ(changed, Errc::io);
  EXPECT_EQ(changed.detail(), "while joining: 10.0.0.1: Connection refused");
  EXPECT_FALSE(Error(Errc::io, "Connection refused").system()) << "a text says nothing";
}

TEST(ErrorTest, KnowsTheErrorsThatItSumsUp) {
  const Error inner = Error(Errc::closed, "all").with_cause(Error(Errc::timeout)).with_cause(Error(Errc::reset));
  const Error outer = Error(Errc::not_found, "any").with_cause(inner).with_context("key").with_peer(PeerId());
  for (const Errc code : {Errc::not_found, Errc::closed, Errc::timeout, Errc::reset})
    EXPECT_TRUE(outer.caused_by(code)) << make_error_code(code).message();
  EXPECT_FALSE(outer.caused_by(Errc::malformed));
  EXPECT_FALSE(Error(Errc::io, make_error_code(Errc::malformed).message()).caused_by(Errc::malformed));
  EXPECT_EQ(outer.detail(), "key: any");
}

TEST(ResultTest, AskingAFailureForItsValueThrowsTheError) {
  const Result<int> failed = Error(Errc::not_found, "key");
  EXPECT_FALSE(failed);
  try {
    (void)failed.value();
    FAIL() << "no exception";
  } catch (const ErrorException& exception) {
    EXPECT_EQ(exception.error(), Errc::not_found);
    EXPECT_STREQ(exception.what(), "key: not found");
  }
  EXPECT_TRUE(ok());
}

}  // namespace
}  // namespace cohive
