// Averaging by the C interface: two peers in one process, and what cannot be meant.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "handles.hpp"

namespace {

using namespace c_tests;
using testing::Each;
using testing::FloatEq;
using testing::HasSubstr;

cohive_tensor described(const std::vector<std::uint32_t>& shape, const char* dtype = "float32",
                        const char* codec = nullptr) {
  return {nullptr, shape.data(), dtype, codec, 0, static_cast<std::int32_t>(shape.size()), 0, 0};
}

constexpr const char* kQuick = R"({"prefix": "run", "min_matchmaking_time": 1.0, "request_timeout": 0.8})";

struct AveragerOwner {
  AveragerOwner(cohive_swarm* swarm, const std::vector<std::uint32_t>& shape, std::uint64_t tag) {
    const auto tensor = described(shape);
    EXPECT_EQ(cohive_averager_open(swarm, kQuick, tag, &tensor, 1, &handle), COHIVE_OK) << cohive_last_error();
    EXPECT_EQ(cohive_averager_buffer(handle, 0, &values, &count), COHIVE_OK);
  }
  ~AveragerOwner() { cohive_averager_free(handle); }
  std::vector<float> content() const { return {values, values + count}; }
  cohive_averager* handle = nullptr;
  float* values = nullptr;
  std::size_t count = 0;
};

TEST(CAverager, AveragesTheMemoryOfTwoPeers) {
  SwarmOwner first(kAlone), second(joining(first.address()));
  const std::vector<std::uint32_t> shape{3, 2};
  AveragerOwner ours(first.handle, shape, 1), theirs(second.handle, shape, 2);
  ASSERT_EQ(ours.count, 6u);
  std::fill_n(ours.values, 6, 1.0f);
  std::fill_n(theirs.values, 6, 3.0f);
  cohive_round *our_round = nullptr, *their_round = nullptr, *another = nullptr;
  TicketOwner our_end, their_end, no_end;
  ASSERT_EQ(cohive_averager_begin(ours.handle, raw("\xa4ours"), 5, nullptr, &our_round, &our_end.handle), COHIVE_OK);
  ASSERT_EQ(cohive_averager_begin(theirs.handle, nullptr, 0, nullptr, &their_round, &their_end.handle), COHIVE_OK);
  EXPECT_EQ(cohive_averager_begin(ours.handle, nullptr, 0, nullptr, &another, &no_end.handle), COHIVE_REFUSED);
  std::int32_t stage = 0;
  EXPECT_EQ(cohive_round_stage(our_round, &stage), COHIVE_OK);
  EXPECT_TRUE(stage == 1 || stage == 2);
  EXPECT_EQ(cohive_round_trigger(our_round, std::nan("")), COHIVE_INVALID_ARGUMENT);
  ASSERT_EQ(cohive_round_trigger(our_round, 3.0), COHIVE_OK);
  ASSERT_EQ(cohive_round_trigger(their_round, 1.0), COHIVE_OK);
  ASSERT_EQ(cohive_ticket_wait(our_end.handle, kLong), COHIVE_OK) << cohive_last_error();
  ASSERT_EQ(cohive_ticket_wait(their_end.handle, kLong), COHIVE_OK) << cohive_last_error();
  EXPECT_THAT(bytes_of(their_end.handle), HasSubstr("ours"));
  EXPECT_THAT(ours.content(), Each(FloatEq(1.5f)));
  EXPECT_THAT(theirs.content(), Each(FloatEq(1.5f)));
  EXPECT_EQ(cohive_round_stage(our_round, &stage), COHIVE_OK);
  EXPECT_EQ(stage, 4);
  cohive_round_free(our_round);
  cohive_round_free(their_round);
}

TEST(CAverager, LeavesTheMemoryAloneAfterARoundThatIsCancelled) {
  SwarmOwner alone(kAlone);
  AveragerOwner averager(alone.handle, {4}, 1);
  std::fill_n(averager.values, 4, 7.0f);
  cohive_round* round = nullptr;
  TicketOwner end, closed;
  ASSERT_EQ(cohive_averager_begin(averager.handle, nullptr, 0, nullptr, &round, &end.handle), COHIVE_OK);
  ASSERT_EQ(cohive_round_trigger(round, 1.0), COHIVE_OK);
  ASSERT_EQ(cohive_ticket_cancel(end.handle), COHIVE_OK);
  EXPECT_EQ(cohive_ticket_wait(end.handle, kLong), COHIVE_CANCELLED);
  EXPECT_THAT(averager.content(), Each(FloatEq(7.0f)));
  EXPECT_EQ(cohive_round_trigger(round, 1.0), COHIVE_OK);  // too late, and nothing
  cohive_round_free(round);
  ASSERT_EQ(cohive_averager_close(averager.handle, 1.0, &closed.handle), COHIVE_OK);
  EXPECT_EQ(cohive_ticket_wait(closed.handle, kLong), COHIVE_OK);
  EXPECT_EQ(cohive_averager_share(averager.handle, 1, 0), COHIVE_CLOSED);
}

TEST(CAverager, OneThatIsFreedMeanwhileStillTellsOthersThatItLeaves) {
  SwarmOwner first(kAlone), second(joining(first.address()));
  AveragerOwner ours(first.handle, {4}, 1), theirs(second.handle, {4}, 2);
  cohive_round *our_round = nullptr, *their_round = nullptr;
  TicketOwner our_end, their_end, closed;
  ASSERT_EQ(cohive_averager_begin(ours.handle, nullptr, 0, nullptr, &our_round, &our_end.handle), COHIVE_OK);
  ASSERT_EQ(cohive_averager_begin(theirs.handle, nullptr, 0, nullptr, &their_round, &their_end.handle), COHIVE_OK);
  ASSERT_EQ(cohive_round_trigger(our_round, 1.0), COHIVE_OK);
  ASSERT_EQ(cohive_round_trigger(their_round, 1.0), COHIVE_OK);
  ASSERT_EQ(cohive_ticket_wait(our_end.handle, kLong), COHIVE_OK) << cohive_last_error();
  ASSERT_EQ(cohive_averager_close(ours.handle, 5.0, &closed.handle), COHIVE_OK);
  EXPECT_EQ(cohive_averager_set_group_bits(ours.handle, "01"), COHIVE_CLOSED) << "it would make another averager";
  cohive_averager_free(std::exchange(ours.handle, nullptr));
  EXPECT_EQ(cohive_ticket_wait(closed.handle, kLong), COHIVE_OK) << cohive_last_error();
  EXPECT_EQ(cohive_ticket_wait(their_end.handle, kLong), COHIVE_OK) << cohive_last_error();
  cohive_round_free(our_round);
  cohive_round_free(their_round);
}

TEST(CAverager, HandsOverAStateThatItsProgramGives) {
  SwarmOwner first(kAlone), second(joining(first.address()));
  AveragerOwner donor(first.handle, {2}, 41), newcomer(second.handle, {2}, 42);
  ASSERT_EQ(cohive_averager_share(donor.handle, 1, 3.0), COHIVE_OK);
  const std::vector<std::uint32_t> shape{2};
  const float values[] = {5, 6};
  TicketOwner downloaded;
  std::int32_t ended = COHIVE_PENDING;
  bool refused = false;                                                   // the first answer is none
  for (int attempt = 0; attempt < 20 && ended != COHIVE_OK; ++attempt) {  // the donor has to be declared first
    cohive_ticket_free(std::exchange(downloaded.handle, nullptr));
    ASSERT_EQ(cohive_averager_download(newcomer.handle, R"({"timeout": 20})", &downloaded.handle), COHIVE_OK);
    while ((ended = cohive_ticket_wait(downloaded.handle, 20)) == COHIVE_PENDING) {
      cohive_event event;
      if (cohive_event_next(20, &event) != COHIVE_OK || event.kind != COHIVE_EVENT_STATE) continue;
      EXPECT_STREQ(event.text, "41");
      cohive_tensor tensor = described(shape, "float32", "FLOAT16");
      tensor.data = values;
      tensor.size = sizeof values;
      const std::string metadata = std::exchange(refused, true) ? "\x81\xa1x\x05" : "\x80";  // {"x": 5}, and {}
      EXPECT_EQ(cohive_state_answer(event.tag, raw(metadata), metadata.size(), &tensor, 1),
                metadata.size() > 1 ? COHIVE_OK : COHIVE_INVALID_ARGUMENT);
      EXPECT_EQ(cohive_state_answer(event.tag, raw(metadata), metadata.size(), &tensor, 1), COHIVE_NOT_FOUND);
    }
  }
  ASSERT_EQ(ended, COHIVE_OK) << cohive_last_error();
  EXPECT_THAT(bytes_of(downloaded.handle), HasSubstr("\x81\xa1x\x05"));
  cohive_tensor got{};
  ASSERT_EQ(cohive_ticket_tensor(downloaded.handle, 0, &got), COHIVE_OK);
  ASSERT_EQ(got.size, sizeof values);
  EXPECT_EQ(static_cast<const float*>(got.data)[1], 6.0f);
  EXPECT_STREQ(got.dtype, "float32");
  EXPECT_EQ(cohive_ticket_tensor(downloaded.handle, 1, &got), COHIVE_NOT_FOUND);
}

/// Holds whoever first reads its memory until the test lets that thread go on.
class HeldMemory {
 public:
  static constexpr std::size_t kSize = 4096;
  HeldMemory() {
    current_ = this;
    struct sigaction hold = {};
    hold.sa_handler = hold_reader;
    hold.sa_flags = SA_RESETHAND;  // any other fault ends the test
    ::sigaction(SIGSEGV, &hold, &before_);
  }
  ~HeldMemory() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(memory_, kSize);
  }
  const void* data() const { return memory_; }
  bool wait_for_a_reader() const {
    const auto end = Clock::now() + std::chrono::milliseconds(kLong);
    while (!reached_ && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return reached_;
  }
  void release() { released_ = true; }

 private:
  static void hold_reader(int) {
    current_->reached_ = true;
    while (!current_->released_) ::usleep(1000);
    ::mprotect(current_->memory_, kSize, PROT_READ);
  }
  static inline HeldMemory* current_ = nullptr;
  void* const memory_ = ::mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct sigaction before_ = {};
  std::atomic<bool> reached_ = false, released_ = false;
};

TEST(CAverager, AnAnswerFindsNobodyWhereItsSwarmWasLeftMeanwhile) {
  std::optional<SwarmOwner> first(std::in_place, kAlone);
  SwarmOwner second(joining(first->address()));
  std::optional<AveragerOwner> donor(std::in_place, first->handle, std::vector<std::uint32_t>{2}, 51);
  AveragerOwner newcomer(second.handle, {2}, 52);
  ASSERT_EQ(cohive_averager_share(donor->handle, 1, 3.0), COHIVE_OK);
  TicketOwner downloaded;
  std::optional<std::uint64_t> question;
  for (int attempt = 0; attempt < 20 && !question; ++attempt) {  // the donor has to be declared first
    cohive_ticket_free(std::exchange(downloaded.handle, nullptr));
    ASSERT_EQ(cohive_averager_download(newcomer.handle, R"({"timeout": 20})", &downloaded.handle), COHIVE_OK);
    while (!question && cohive_ticket_wait(downloaded.handle, 20) == COHIVE_PENDING) {
      cohive_event event;
      if (cohive_event_next(20, &event) == COHIVE_OK && event.kind == COHIVE_EVENT_STATE &&
          std::string(event.text) == "51")
        question = event.tag;
    }
  }
  ASSERT_TRUE(question);
  HeldMemory memory;
  std::thread program([&] {
    const std::vector<std::uint32_t> shape{HeldMemory::kSize / sizeof(float)};
    cohive_tensor tensor = described(shape);
    tensor.data = memory.data();
    tensor.size = HeldMemory::kSize;
    EXPECT_EQ(cohive_state_answer(*question, raw("\x81\xa1x\x05"), 4, &tensor, 1), COHIVE_NOT_FOUND);
  });
  EXPECT_TRUE(memory.wait_for_a_reader()) << "the state is not copied";
  donor.reset();
  first.reset();
  memory.release();
  program.join();
}

TEST(CAverager, RefusesWhatCannotBeMeant) {
  SwarmOwner alone(kAlone);
  const std::vector<std::uint32_t> shape{2}, large{1u << 22}, huge{1u << 31, 1u << 31};
  const auto refused = [&](const char* options, cohive_tensor tensor, std::size_t count, const char* sentence) {
    cohive_averager* averager = nullptr;
    EXPECT_EQ(cohive_averager_open(alone.handle, options, 1, &tensor, count, &averager), COHIVE_INVALID_ARGUMENT);
    EXPECT_THAT(cohive_last_error(), HasSubstr(sentence));
    EXPECT_EQ(averager, nullptr);
  };
  refused(kQuick, described(shape), 0, "needs tensors");
  refused(kQuick, described(shape, "float33"), 1, "float33 is no dtype");
  refused(kQuick, described(shape, "float32", "ZIP"), 1, "ZIP is no codec");
  refused(kQuick, described(shape, "float32", "top_k"), 1, "top_k is no codec that every peer has");
  refused(kQuick, described(huge), 1, "2^40");
  refused(R"({"prefix": "a.b"})", described(shape), 1, "prefix");
  refused(R"({"prefix": "run", "mode": "spectator"})", described(shape), 1, "spectator");
  refused(R"({"prefix": "run", "min_compression_ratio": 0.5})", described(shape), 1, "averager_rank");
  refused(R"({"prefix": "run", "part_size_bytes": 16777216})", described(shape), 1, "must be at most 15728640");
  refused(R"({"prefix": "run", "part_size_bytes": 8388608})", described(large, "bfloat16"), 1, "at most 7864320");
  refused(R"({"prefix": "run", "min_group_sise": 2})", described(shape), 1, "did you mean min_group_size?");
}

TEST(CCodec, EncodesAndDecodesTensorsOfEveryCodec) {
  std::vector<float> values(300);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const std::vector<std::uint32_t> shape{3, 100};
  for (const char* codec : {"NONE", "FLOAT16", "MEANSTD_16BIT", "QUANTILE_8BIT", "UNIFORM_8BIT", "BLOCKWISE_8BIT"}) {
    cohive_tensor tensor = described(shape, "float32", codec);
    tensor.data = values.data();
    tensor.size = values.size() * sizeof(float);
    cohive_bytes encoded{}, decoded{};
    ASSERT_EQ(cohive_codec_encode(&tensor, &encoded, nullptr), COHIVE_OK) << cohive_last_error();
    tensor.data = encoded.data;
    tensor.size = encoded.size;
    ASSERT_EQ(cohive_codec_decode(&tensor, &decoded), COHIVE_OK) << cohive_last_error();
    ASSERT_EQ(decoded.size, values.size() * sizeof(float));
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(reinterpret_cast<const float*>(decoded.data)[i], values[i], 0.1) << codec;
    tensor.size -= 1;
    cohive_bytes none{};
    EXPECT_EQ(cohive_codec_decode(&tensor, &none), COHIVE_INVALID_ARGUMENT) << codec;
    cohive_bytes_free(&encoded);
    cohive_bytes_free(&decoded);
  }
}

}  // namespace
