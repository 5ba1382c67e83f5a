#include "cohive/checkpoint/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "cohive/checkpoint/errors.hpp"
#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "temporary_folder.hpp"

namespace cohive::checkpoint {
namespace {

using ::testing::HasSubstr;

codec::Tensor tensor(codec::DType dtype, codec::Shape shape, std::uint8_t fill) {
  const auto size = *codec::element_count(shape) * codec::size_of(dtype);
  return {dtype, std::move(shape), false, Slice::copy_of(Bytes(size, fill))};
}

TensorFile example() {
  return {{{"epoch", "42"}, {"quoted \"key\"", "line\nbreak, \xc3\xa4"}},
          {{"step", tensor(codec::DType::float32, {}, 1)},
           {"weight", tensor(codec::DType::float64, {3, 2}, 2)},
           {"empty", tensor(codec::DType::float16, {0, 5}, 0)},
           {"flags", tensor(codec::DType::boolean, {3}, 1)}}};
}

/// A file around any header.
std::string file_of(const std::string& json, const std::string& data) {
  std::string size(8, '\0');
  for (int i = 0; i < 8; ++i) size[i] = static_cast<char>(json.size() >> 8 * i & 0xff);
  return size + json + data;
}

class Safetensors : public ::testing::Test {
 protected:
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "file.safetensors";
};

TEST_F(Safetensors, WhatIsWrittenIsRead) {
  ASSERT_TRUE(write_file(path, example()));
  const auto read = read_file(path);
  ASSERT_TRUE(read) << read.error();
  for (const auto& [key, value] : example().metadata) EXPECT_EQ(read->metadata.at(key), value);
  std::map<std::string, const codec::Tensor*> found;
  for (const auto& one : read->tensors) found[one.name] = &one.tensor;
  ASSERT_EQ(found.size(), 4u);
  for (const auto& [name, expected] : example().tensors) {
    EXPECT_EQ(found.at(name)->dtype, expected.dtype) << name;
    EXPECT_EQ(found.at(name)->shape, expected.shape) << name;
    EXPECT_EQ(to_bytes(found.at(name)->data), to_bytes(expected.data)) << name;
  }
  EXPECT_EQ(folder.names(), (std::set<std::string>{"file.safetensors"})) << "nothing is left beside it";
}

TEST_F(Safetensors, OtherUsersCannotWriteToTheFile) {
  const auto before = ::umask(0);
  ASSERT_TRUE(write_file(path, example()));
  ::umask(before);
  struct stat facts;
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0644u);
}

TEST_F(Safetensors, TheFileIsWhatTheFormatSays) {
  ASSERT_TRUE(write_file(path, example()));
  const std::string bytes = bytes_of(path);
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  EXPECT_EQ(size % 8, 0u) << "the data are aligned";
  auto header = nlohmann::json::parse(bytes.substr(8, size));
  EXPECT_EQ(header.at("weight"), nlohmann::json({{"dtype", "F64"}, {"shape", {3, 2}}, {"data_offsets", {0, 48}}}));
  EXPECT_EQ(header.at("step").at("shape"), nlohmann::json::array());
  EXPECT_EQ(header.at("flags").at("dtype"), "BOOL");
  // Anyone can check the hash: that of the file with zeros in its place.
  std::string blank = bytes;
  const std::string digits = header.at("__metadata__").at(std::string(kHashKey));
  blank.replace(blank.find(digits), digits.size(), std::string(digits.size(), '0'));
  EXPECT_EQ(to_hex(crypto::sha256(as_bytes(blank))), digits);
}

TEST_F(Safetensors, EveryChangedByteIsNoticed) {
  ASSERT_TRUE(write_file(path, example()));
  const std::string good = bytes_of(path);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 4);
    set_bytes(path, bad);
    const auto read = read_file(path);
    // A hash whose name was changed is none: the file is one that another program wrote.
    if (read && !read->metadata.contains(kHashKey)) continue;
    ASSERT_FALSE(read) << "byte " << i;
    EXPECT_EQ(read.error().code().category(), checkpoint_category()) << read.error();
  }
}

TEST_F(Safetensors, EveryCutIsNoticed) {
  ASSERT_TRUE(write_file(path, example()));
  const std::string good = bytes_of(path);
  for (std::size_t size = 0; size < good.size(); ++size) {
    set_bytes(path, good.substr(0, size));
    const auto read = read_file(path);
    ASSERT_FALSE(read) << size;
    EXPECT_EQ(read.error(), Errc::damaged) << size;
  }
  set_bytes(path, good + "x");
  EXPECT_EQ(read_file(path).error(), Errc::not_safetensors);
}

TEST_F(Safetensors, AFileOfAnotherProgramNeedsNoHash) {
  set_bytes(
      path,
      file_of(
          R"({"b":{"dtype":"I8","shape":[2],"data_offsets":[4,6]},)"
          R"("a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}}  )",
          "\1\2\3\4\5\6"));
  const auto read = read_file(path);
  ASSERT_TRUE(read) << read.error();
  ASSERT_EQ(read->tensors.size(), 2u);
  EXPECT_EQ(read->tensors[0].name, "a");
  EXPECT_EQ(to_string(read->tensors[1].tensor.data), "\5\6");
}

TEST_F(Safetensors, WhatBreaksARuleIsRefused) {
  const auto refused = [&](const std::string& json, const std::string& data, const std::string& why) {
    SCOPED_TRACE(json.substr(0, 200));
    set_bytes(path, file_of(json, data));
    const auto read = read_file(path);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error(), Errc::not_safetensors) << read.error();
    EXPECT_THAT(read.error().message(), HasSubstr(why));
    EXPECT_THAT(read.error().message(), HasSubstr(path.string()));
  };
  const auto one = [](const std::string& fields) { return R"({"a":{)" + fields + "}}"; };
  refused("", "", "no JSON object");
  refused("[]", "", "no JSON object");
  refused(" {}", "", "no JSON object");
  refused("{", "", "no JSON");
  refused("{} x", "", "no JSON");
  refused("{\"\xff\":{}}", "", "no JSON");
  refused(R"({"a":1})", "", "number");
  refused(R"({"a":null})", "", "null");
  refused(R"({"a":"x"})", "", "text");
  refused(R"({"a":[]})", "", "list");
  refused(R"({"__metadata__":{"a":1}})", "", "number");
  refused(R"({"__metadata__":{"a":{}}})", "", "object");
  refused(R"({"__metadata__":{"a":"1","a":"2"}})", "", "twice");
  refused(R"({"__metadata__":{},"__metadata__":{}})", "", "twice");
  refused(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
      "xy", "twice");
  refused(one(R"("dtype":"U8","shape":[1])"), "x", "lacks");
  refused(one(R"("dtype":"U9","shape":[1],"data_offsets":[0,1])"), "x", "unknown type");
  refused(one(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), "x", "two types");
  refused(one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), "x", "below zero");
  refused(one(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,1])"), "x", "not whole");
  refused(one(R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])"), "x", "list");
  refused(one(R"("dtype":"U8","shape":[4294967296,0],"data_offsets":[0,0])"), "", "shape");
  refused(one(R"("dtype":"F64","shape":[4294967295,4294967295],"data_offsets":[0,8])"), "12345678", "shape");
  refused(one(R"("dtype":"U8","shape":[2],"data_offsets":[0,1])"), "x", "shape");
  refused(one(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), "x", "two numbers");
  refused(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), "x", "number");
  refused(one(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), "x", "not where they belong");
  refused(one(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), "xy", "not where they belong");
  refused(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"more":"x")"), "x", "text");
  refused(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
      "xyz", "not where they belong");
  refused(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), "xy", "after the last");
}

TEST_F(Safetensors, AHeaderIsNotTakenAtItsWord) {
  std::string bytes = file_of("{}", "");
  bytes[7] = 1;  // 2^56 bytes
  set_bytes(path, bytes);
  EXPECT_EQ(read_file(path).error(), Errc::not_safetensors);
  // Nested deeper than a stack is.
  set_bytes(path, file_of("{\"a\":" + std::string(1'000'000, '['), ""));
  EXPECT_EQ(read_file(path).error(), Errc::not_safetensors);
  const auto limited = [&] { return read_file(path, {.max_bytes = 3}); };
  set_bytes(path, file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "1234"));
  EXPECT_EQ(limited().error(), cohive::Errc::limit_exceeded);
}

/// Files are as large as the model that was written.
TEST_F(Safetensors, OnlyAReaderThatAsksForALimitRefusesALargeFile) {
  EXPECT_EQ(ReadOptions().max_bytes, std::numeric_limits<std::uint64_t>::max());
  ASSERT_TRUE(write_file(path, example()));
  const std::uint64_t bytes = 4 + 48 + 3;  // of its tensors
  EXPECT_TRUE(read_file(path, {.max_bytes = bytes}));
  EXPECT_EQ(read_file(path, {.max_bytes = bytes - 1}).error(), cohive::Errc::limit_exceeded);
}

TEST_F(Safetensors, WhatIsNoFileIsNotRead) {
  ASSERT_TRUE(write_file(path, example()));
  std::filesystem::create_symlink(path, folder / "link");
  EXPECT_THAT(read_file(folder / "link").error().message(), HasSubstr("symbolic link"));
  EXPECT_EQ(read_file(folder.path()).error(), cohive::Errc::io);
  EXPECT_THAT(read_file(folder / "missing").error().message(), HasSubstr("No such file"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(read_file(folder / "pipe").error().message(), HasSubstr("not a file"));
  EXPECT_EQ(read_file("/dev/zero").error(), cohive::Errc::io);
}

TEST_F(Safetensors, ALinkInTheWayIsReplacedAndNotFollowed) {
  set_bytes(folder / "victim", "precious");
  std::filesystem::create_symlink(folder / "victim", path);
  ASSERT_TRUE(write_file(path, example()));
  EXPECT_EQ(bytes_of(folder / "victim"), "precious");
  EXPECT_TRUE(read_file(path));
}

TEST_F(Safetensors, ADiskThatIsFullLeavesTheOlderFileAlone) {
  ASSERT_TRUE(write_file(path, example()));
  const std::string before = bytes_of(path);
  auto large = example();
  large.tensors.push_back({"large", tensor(codec::DType::uint8, {1 << 20}, 1)});
  // A limit of a file's size fails a write as a full disk does.
  struct rlimit old;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small{64 * 1024, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto written = write_file(path, large);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error(), cohive::Errc::io);
  EXPECT_THAT(written.error().message(), HasSubstr("cannot be written: File too large"));
  EXPECT_EQ(bytes_of(path), before);
  EXPECT_EQ(folder.names().size(), 1u) << "nothing is left beside it";
  EXPECT_THAT(write_file(folder / "none/file", example()).error().message(), HasSubstr("No such file"));
}

TEST_F(Safetensors, WhatTheFormatCannotSayIsNotWritten) {
  EXPECT_EQ(write_file(path, {{}, {{"\xff", tensor(codec::DType::uint8, {1}, 0)}}}).error(),
            cohive::Errc::invalid_argument);
  EXPECT_EQ(write_file(path, {{}, {{"a", tensor(codec::DType::complex128, {1}, 0)}}}).error(),
            cohive::Errc::invalid_argument);
  EXPECT_FALSE(
      write_file(path, {{}, {{"a", tensor(codec::DType::uint8, {1}, 0)}, {"a", tensor(codec::DType::uint8, {1}, 0)}}}));
  EXPECT_EQ(folder.names().size(), 0u);
}

TEST_F(Safetensors, AFileIsWrittenInPiecesAndLeavesNothingBehindUntilItIsWhole) {
  const std::size_t large = FileWriter::kPiece / 4 * 5 / 4;  // floats: one piece and a quarter
  auto values = std::make_shared<TensorFile>();
  values->tensors = {{"a", tensor(codec::DType::float32, {static_cast<std::uint32_t>(large)}, 1)},
                     {"b", tensor(codec::DType::uint8, {3}, 2)}};
  const auto files = [this] { return folder.names().size(); };
  {
    auto dropped = FileWriter::create(path, values).value();
    EXPECT_TRUE(dropped.write_piece().value()) << "more is left";
    EXPECT_EQ(files(), 1u) << "under another name";
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  EXPECT_EQ(files(), 0u);
  auto writer = FileWriter::create(path, values).value();
  EXPECT_TRUE(writer.write_piece().value());
  EXPECT_FALSE(writer.write_piece().value());
  ASSERT_TRUE(writer.finish());
  EXPECT_EQ(files(), 1u);
  ASSERT_TRUE(write_file(folder / "at once", *values));
  const auto content = read_file(path);
  ASSERT_TRUE(content) << content.error();
  EXPECT_EQ(content->metadata, read_file(folder / "at once").value().metadata) << "the same hash";
  EXPECT_EQ(FileWriter::create(folder / "none/file", values).error().system(), std::errc::no_such_file_or_directory);
}

}  // namespace
}  // namespace cohive::checkpoint
