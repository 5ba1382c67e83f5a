#include "cohive/checkpoint/folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cohive/checkpoint/errors.hpp"
#include "cohive/core/errors.hpp"
#include "temporary_folder.hpp"

namespace cohive::checkpoint {
namespace {

using ::testing::HasSubstr;
using Names = std::set<std::string>;

TensorFile content(const std::string& word) {
  return {{{"word", word}}, {{"a", {codec::DType::uint8, {4}, false, Slice::copy_of(Bytes(4, 7))}}}};
}

class CheckpointFolder : public ::testing::Test {
 protected:
  void write(std::uint64_t epoch, std::size_t keep = 3) {
    const auto written = folder.write(epoch, content(std::to_string(epoch)), keep);
    ASSERT_TRUE(written) << written.error();
  }
  void damage(const std::string& name) {
    std::string bytes = bytes_of(files / name);
    bytes.back() ^= 1;
    set_bytes(files / name, bytes);
  }
  std::string newest() {
    const auto found = folder.newest_whole();
    if (!found) return found.error().message();
    return *found ? (*found)->content.metadata.at("word") : "none";
  }

  const TemporaryFolder files;
  Folder folder = Folder::open(files.path()).value();
};

TEST_F(CheckpointFolder, KeepsTheLastOnes) {
  for (std::uint64_t epoch = 1; epoch <= 5; ++epoch) write(epoch);
  EXPECT_EQ(files.names(),
            (Names{"epoch-00000003.safetensors", "epoch-00000004.safetensors", "epoch-00000005.safetensors"}));
  EXPECT_EQ(newest(), "5");
  write(6, 1);
  EXPECT_EQ(files.names(), Names{"epoch-00000006.safetensors"});
}

TEST_F(CheckpointFolder, TheSameEpochTakesThePlaceOfTheOlderFile) {
  write(7);
  ASSERT_TRUE(folder.write(7, content("again"), 3));
  EXPECT_EQ(files.names().size(), 1u);
  EXPECT_EQ(newest(), "again");
}

TEST_F(CheckpointFolder, NamesSortByNumberWhateverTheirLength) {
  write(99'999'999);
  write(123'456'789);
  EXPECT_EQ(newest(), "123456789");
}

TEST_F(CheckpointFolder, OtherFilesAreNobodysBusiness) {
  const Names others{"epoch-1.safetensors", "epoch-00000001.safetensors.bak", "notes.txt", "other.tmp-12345678",
                     "epoch-00000009.pt"};
  for (const auto& name : others) set_bytes(files / name, "mine");
  std::filesystem::create_symlink("/etc/passwd", files / "epoch-00000099.safetensors");
  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) write(epoch, 1);
  EXPECT_EQ(newest(), "3");
  for (const auto& name : others) EXPECT_EQ(bytes_of(files / name), "mine") << name;
}

TEST_F(CheckpointFolder, ADamagedOneIsPassedOverAndSetAside) {
  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) write(epoch);
  damage("epoch-00000003.safetensors");
  set_bytes(files / "epoch-00000002.safetensors", bytes_of(files / "epoch-00000002.safetensors").substr(0, 100));
  EXPECT_EQ(newest(), "1");
  EXPECT_EQ(files.names(), (Names{"epoch-00000001.safetensors", "epoch-00000002.safetensors.damaged",
                                  "epoch-00000003.safetensors.damaged"}));
  write(2, 1);
  EXPECT_EQ(newest(), "2");
}

TEST_F(CheckpointFolder, ThoseThatARunHasGoneBackFromAreSetAside) {
  for (std::uint64_t epoch = 98; epoch <= 100; ++epoch) write(epoch);
  write(51);
  EXPECT_EQ(newest(), "51");
  write(52);
  EXPECT_EQ(newest(), "52");
  EXPECT_EQ(files.names(),
            (Names{"epoch-00000051.safetensors", "epoch-00000052.safetensors", "epoch-00000098.safetensors.superseded",
                   "epoch-00000099.safetensors.superseded", "epoch-00000100.safetensors.superseded"}));
}

TEST_F(CheckpointFolder, WhereNoneIsWholeNothingIsTouched) {
  EXPECT_EQ(newest(), "none");
  write(1);
  damage("epoch-00000001.safetensors");
  EXPECT_EQ(folder.newest_whole().error(), Errc::damaged);
  EXPECT_EQ(files.names(), Names{"epoch-00000001.safetensors"});
}

TEST(CheckpointFolders, AreMadeAndClearedOfWhatInterruptedWritesLeft) {
  const TemporaryFolder outer;
  const auto path = outer / "a/b";
  {
    ASSERT_TRUE(Folder::open(path));
  }
  set_bytes(path / "epoch-00000001.safetensors.tmp-0a1b2c3d", "half");
  ASSERT_TRUE(Folder::open(path));
  EXPECT_TRUE(std::filesystem::is_empty(path));
  EXPECT_EQ(std::filesystem::status(path).permissions() & std::filesystem::perms::others_write,
            std::filesystem::perms::none);
}

TEST(CheckpointFolders, BelongToOneProcess) {
  const TemporaryFolder files;
  const auto first = Folder::open(files.path());
  ASSERT_TRUE(first);
  const auto second = Folder::open(files.path());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error(), Errc::in_use);
  EXPECT_THAT(second.error().message(), HasSubstr(files.path().string()));
}

TEST(CheckpointFolders, ThatCannotBeUsedSayWhy) {
  const TemporaryFolder files;
  set_bytes(files / "file", "");
  const auto no_folder = Folder::open(files / "file");
  ASSERT_FALSE(no_folder);
  EXPECT_EQ(no_folder.error(), cohive::Errc::io);
  EXPECT_THAT(no_folder.error().message(), HasSubstr((files / "file").string()));
  EXPECT_EQ(Folder::open(files / "file/below").error(), cohive::Errc::io);
}

}  // namespace
}  // namespace cohive::checkpoint
