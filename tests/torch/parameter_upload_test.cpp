// Parameters on their way back to a device: which stretches go when, and that all of them arrive. The link is a fake.
#include "torch/parameter_upload.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "torch/fake_link.hpp"

namespace cohive::libtorch {
namespace {

using averaging::Stretch;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::Not;

const FakeLink::Entry kFollowFirst{"follow"}, kHoldBack{"hold back"};
FakeLink::Entry upload_of(std::size_t bytes) {
  return {"upload", nullptr, bytes};
}

struct Uploads : testing::Test {
  explicit Uploads(torch::ScalarType type = torch::kFloat32) {
    for (const std::int64_t size : {100, 7}) {
      mirrors.push_back(torch::zeros({size}, type));
      values.push_back(torch::linspace(-3, 5, size) * 1.37);
    }
  }
  std::span<const float> part(const Stretch& stretch) const {
    return {values[stretch.tensor].data_ptr<float>() + stretch.offset, stretch.length};
  }
  void stage(ParameterUpload& upload, const Stretch& stretch) { upload.stage(stretch, part(stretch)); }
  /// What the trainer's next work sees.
  void expect_arrived() {
    ASSERT_TRUE(link->held_back);
    link->held_back();
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_TRUE(torch::equal(mirrors[i], values[i].to(mirrors[i].scalar_type()))) << i;
  }

  std::shared_ptr<FakeLink> link = std::make_shared<FakeLink>();
  std::vector<torch::Tensor> mirrors, values;
};

TEST_F(Uploads, LeaveWhileOthersAreStepped) {
  ParameterUpload upload(link, mirrors);
  upload.begin(true);
  EXPECT_TRUE(upload.begun());
  stage(upload, {0, 40, 20});
  EXPECT_THAT(link->log, ElementsAre(kFollowFirst, upload_of(80))) << "before the step has ended";
  stage(upload, {0, 0, 40});
  upload.finish(values);
  EXPECT_FALSE(upload.begun());
  EXPECT_FALSE(upload.ready());
  EXPECT_THAT(link->log,
              ElementsAre(kFollowFirst, upload_of(80), upload_of(160), upload_of(160), upload_of(28), kHoldBack))
      << "each value once";
  expect_arrived();
}

TEST_F(Uploads, WaitForTheirTurnWhereTheTrainerComputes) {
  ParameterUpload upload(link, mirrors);
  upload.begin(false);
  stage(upload, {0, 40, 20});
  upload.finish(values);
  EXPECT_THAT(link->log, Each(Not(kHoldBack)));
  EXPECT_THAT(link->log, Not(Contains(upload_of(80))));
  EXPECT_TRUE(upload.ready());
  upload.send();
  EXPECT_FALSE(upload.ready());
  EXPECT_THAT(link->log, ElementsAre(kFollowFirst, upload_of(400), upload_of(28), kHoldBack));
  expect_arrived();
}

TEST_F(Uploads, OfEveryTypeAreRoundedAsLibTorchRounds) {
  for (const auto type : {torch::kFloat16, torch::kBFloat16, torch::kFloat64}) {
    struct OfType : Uploads {
      using Uploads::Uploads;
      void TestBody() override {}
    } of_type(type);
    ParameterUpload upload(of_type.link, of_type.mirrors);
    upload.begin(true);
    of_type.stage(upload, {0, 33, 1});
    upload.finish(of_type.values);
    of_type.expect_arrived();
  }
}

TEST_F(Uploads, AreStagedByManyThreadsAtOnce) {
  ParameterUpload upload(link, mirrors);
  for (int round = 0; round < 50; ++round) {
    for (auto& mirror : mirrors) mirror.zero_();
    upload.begin(true);
    std::vector<std::thread> threads;
    for (std::size_t at = 0; at < 100; at += 25)
      threads.emplace_back([&, at] {
        for (std::size_t k = at; k < at + 25; k += 5) stage(upload, {0, k, 5});
      });
    for (auto& thread : threads) thread.join();
    upload.finish(values);
    expect_arrived();
  }
  EXPECT_EQ(link->opened, 1) << "pinned memory is used again";
}

/// LibTorch's own views of a tensor, which are not in one piece.
TEST_F(Uploads, ReachMirrorsThatTakeNoPlainCopies) {
  mirrors[0] = torch::zeros({200}).as_strided({100}, {2});
  ParameterUpload upload(link, mirrors);
  for (const bool at_once : {true, false}) {
    mirrors[0].zero_();
    upload.begin(at_once);
    stage(upload, {0, 0, 50});
    upload.finish(values);
    if (!at_once) upload.send();
    expect_arrived();
  }
}

TEST_F(Uploads, TellWhatHasSavedTheMirrors) {
  ParameterUpload upload(link, mirrors);
  const auto before = mirrors[0]._version();
  upload.send(values);
  EXPECT_GT(mirrors[0]._version(), before);
}

TEST_F(Uploads, ThatAreForgottenAreNotSent) {
  ParameterUpload upload(link, mirrors);
  upload.begin(false);
  stage(upload, {0, 0, 50});
  upload.forget();
  EXPECT_FALSE(upload.begun());
  EXPECT_FALSE(upload.ready());
}

/// A step goes on where its results cannot be copied: the error is that of the copies.
TEST_F(Uploads, ThatFailAreAnErrorInTheEnd) {
  ParameterUpload upload(link, mirrors);
  upload.begin(true);
  link->refusing = true;
  stage(upload, {0, 0, 50});
  link->refusing = false;
  EXPECT_THROW(upload.finish(values), std::runtime_error);
  upload.send(values);
  expect_arrived();
}

}  // namespace
}  // namespace cohive::libtorch
