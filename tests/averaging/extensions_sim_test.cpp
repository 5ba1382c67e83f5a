// Codecs beyond hivemind's, from the offer to the average.
#include <cmath>

#include "averaging/averaging_fixture.hpp"

namespace cohive::averaging {
namespace {

using codec::Extension;

class ExtensionRounds : public Averaging {
 protected:
  AveragerOptions offering(std::optional<Extension> kind) {
    auto options = quick();
    if (kind) options.extension = codec::ExtensionOptions{*kind, 0.1};
    return options;
  }
};

TEST_F(ExtensionRounds, AreAgreedOnByAGroupWhoseMembersAllOfferThem) {
  for (int i = 0; i < 3; ++i) add(offering(Extension::block4));
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 3u);
    EXPECT_EQ(result->extension, Extension::block4);
  }
}

/// Which member, leader or follower, offers something else or nothing.
class OddOffer : public ExtensionRounds,
                 public ::testing::WithParamInterface<std::tuple<std::size_t, std::optional<Extension>>> {};

TEST_P(OddOffer, OfOneMemberMeansTheOrdinaryCodec) {
  const auto [odd, other] = GetParam();
  for (std::size_t i = 0; i < 3; ++i) add(offering(i == odd ? other : Extension::block4));
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 3u);
    EXPECT_EQ(result->extension, std::nullopt);
    EXPECT_EQ(result->parts_failed, 0u);
  }
  for (auto& peer : peers) ASSERT_NEAR(peer->a[0], 1.0f, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(ExtensionRounds, OddOffer,
                         ::testing::Combine(::testing::Values(0, 1, 2),
                                            ::testing::Values(std::nullopt, Extension::top_k)));

}  // namespace
}  // namespace cohive::averaging
