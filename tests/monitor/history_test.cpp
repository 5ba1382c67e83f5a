// What a monitor keeps of a run over restarts, and the curves that it draws of it.
#include "monitor/history.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>

#include "monitor/plot.hpp"
#include "monitor/trainer_reports.hpp"
#include "monitor/view_json.hpp"

namespace cohive::tools {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

TEST(LookHistory, IsTheSameAfterARestart) {
  LookHistory history("run");
  std::string file;
  for (std::uint32_t i = 0; i < 10; ++i) {
    RunRecords records;
    records.trainers = {trainer_at(1, i / 2), trainer_at(2, i / 2)};
    records.losses = {{.marker = "key 1", .step = i / 2, .samples = 500, .loss = 9.0 - i / 2}};
    if (const auto line = history.add(make_view({.run_id = "run"}, 1000 + i, records, nullptr))) file += *line + "\n";
  }
  EXPECT_THAT(history.looks(), SizeIs(5)) << "a look that says nothing new is not kept";
  const std::string path = testing::TempDir() + "/history.jsonl";
  std::FILE* out = std::fopen(path.c_str(), "w");
  std::fputs((file + "nonsense\n{\"run_id\":\"other\"}\n").c_str(), out);
  std::fclose(out);
  LookHistory again("run");
  const auto nonsense = again.load(path);
  ASSERT_TRUE(nonsense) << nonsense.error();
  EXPECT_EQ(*nonsense, 2u);
  ASSERT_THAT(again.looks(), SizeIs(5));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(line_of(again.looks()[i], "run"), line_of(history.looks()[i], "run"));
  EXPECT_THAT(losses_of(again.looks()), SizeIs(5));
  const std::string svg = plot_svg(again.looks(), "run <b>");
  EXPECT_THAT(svg, AllOf(HasSubstr("loss of the trainers"), HasSubstr("run &#60;b&#62;"), Not(HasSubstr("nan"))));
  EXPECT_EQ(view_json(RunView(), again.looks())["epochs"].size(), 4u);
  const RunView last = again.last_seen(), ended = make_view({.run_id = "run"}, 2000, {}, nullptr, &last);
  EXPECT_EQ(ended.epoch, 4u) << "a monitor that was restarted after the end";
  EXPECT_THAT(ended.ended, testing::Optional(testing::AllOf(testing::Ge(1008), testing::Le(1009))));
}

TEST(LookHistory, TheEndOfALongFileIsReadAlone) {
  constexpr std::size_t kMore = 10;
  const std::string path = testing::TempDir() + "/long-history.jsonl";
  {
    std::ofstream file(path);
    file << "nonsense\n";
    for (std::size_t i = 0; i < LookHistory::kKept + kMore; ++i) {
      file << line_of({.time = 1000.0 + static_cast<double>(i), .epoch = i}, "run") << '\n';
      if (i % 1000 == 0) file << "\n" << line_of({.time = 1, .epoch = 1}, "another run") << '\n';
    }
    file << "cut off";
  }
  LookHistory history("run");
  EXPECT_EQ(history.load(path).value(), 1u) << "what stands before the looks that are kept is not looked at";
  ASSERT_THAT(history.looks(), SizeIs(LookHistory::kKept));
  EXPECT_EQ(history.looks().front().epoch, kMore);
  EXPECT_EQ(history.looks().back().epoch, LookHistory::kKept + kMore - 1);
  std::remove(path.c_str());
}

/// Looks at these epochs, each with a loss of its own.
std::deque<Look> looks_at(const std::vector<std::uint64_t>& epochs) {
  std::deque<Look> looks;
  for (const std::uint64_t epoch : epochs) {
    const auto number = static_cast<double>(looks.size());
    looks.push_back({.time = 1000 + number, .epoch = epoch, .loss = 9 - number, .loss_step = epoch});
  }
  return looks;
}

/// The epochs of the curve of losses, each with the number of the look that it is taken from.
std::vector<std::pair<std::uint64_t, double>> shown_losses(const std::deque<Look>& looks) {
  std::vector<std::pair<std::uint64_t, double>> shown;
  for (const Look& look : losses_of(looks)) shown.emplace_back(look.loss_step, look.time - 1000);
  return shown;
}

std::vector<std::uint64_t> shown_epochs(const std::deque<Look>& looks) {
  const nlohmann::json run = view_json(RunView(), looks);
  std::vector<std::uint64_t> shown;
  for (const auto& epoch : run.at("epochs")) shown.push_back(epoch.at("epoch").get<std::uint64_t>());
  return shown;
}

TEST(LookHistory, ARunThatBeginsAnewUnderItsNameBeginsItsCurvesAnew) {
  const auto looks = looks_at({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3});
  EXPECT_THAT(shown_losses(looks), ElementsAre(std::pair(0, 10), std::pair(1, 11), std::pair(2, 12), std::pair(3, 13)));
  EXPECT_THAT(shown_epochs(looks), ElementsAre(0, 1, 2));
}

TEST(LookHistory, ARunThatGoesBackToACheckpointKeepsWhatWasBeforeIt) {
  const auto looks = looks_at({0, 1, 2, 3, 4, 2, 3, 4, 5});
  EXPECT_THAT(shown_losses(looks), ElementsAre(std::pair(0, 0), std::pair(1, 1), std::pair(2, 5), std::pair(3, 6),
                                               std::pair(4, 7), std::pair(5, 8)));
  EXPECT_THAT(shown_epochs(looks), ElementsAre(0, 1, 2, 3, 4));
}

TEST(LookHistory, ASingleLookAtAnEarlierEpochChangesNoCurve) {
  const auto looks = looks_at({0, 1, 2, 0, 2, 3});
  EXPECT_THAT(shown_losses(looks), ElementsAre(std::pair(0, 0), std::pair(1, 1), std::pair(2, 4), std::pair(3, 5)));
  EXPECT_THAT(shown_epochs(looks), ElementsAre(0, 1, 2));
}

TEST(LookHistory, ValuesThatDifferByRoundingAloneAreDrawn) {
  std::deque<Look> looks;
  for (const double loss : {2.3, std::nextafter(2.3, 3.0), 2.3})
    looks.push_back({.time = 1000.0 + static_cast<double>(looks.size()), .loss = loss, .loss_step = looks.size()});
  EXPECT_LT(plot_svg(looks, "run").size(), 20'000u);
}

}  // namespace
}  // namespace cohive::tools
