// multistream-select, seen by a peer that writes bytes: pieces, refusals, endless and malformed negotiation.
#include "cohive/transport/multistream.hpp"

#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/varint.hpp"
#include "cohive/transport/errors.hpp"
#include "memory_connection.hpp"
#include "transport/raw_stream.hpp"

namespace cohive::transport {
namespace {

std::string token(std::string_view text) {
  std::string out;
  append_varint(out, text.size() + 1);
  return out.append(text) + "\n";
}
const std::string kHeader = token("/multistream/1.0.0");

Task<void> run_answer(Stream& stream, std::string protocol, Deadline deadline, Result<std::string>& out) {
  const auto supported = [protocol](std::string_view proposal) { return proposal == protocol; };
  out = co_await answer_selection(stream, supported, deadline);
}
Task<void> run_select(Stream& stream, std::vector<std::string> protocols, Deadline deadline, Result<std::string>& out) {
  out = co_await select_one_of(stream, protocols, deadline);
}

class Multistream : public ::testing::Test {
 protected:
  Multistream() : raw_(wire_.our_end()), stream_(std::make_unique<RawStream>(runtime_, *raw_)) {}
  void answer(std::string protocol) {
    group_.spawn(run_answer(*stream_, protocol, runtime_.after(10s), outcome_));
    runtime_.run_ready();
  }
  void select(std::vector<std::string> protocols) {
    group_.spawn(run_select(*stream_, std::move(protocols), runtime_.after(10s), outcome_));
    runtime_.run_ready();
  }
  void send(std::string_view bytes) {
    wire_.send(bytes);
    runtime_.run_ready();
  }
  std::string received() { return to_string(wire_.received()); }

  SimRuntime runtime_;
  test::Wire wire_{runtime_};
  std::unique_ptr<RawConnection> raw_;
  std::unique_ptr<RawStream> stream_;
  Result<std::string> outcome_ = Error(cohive::Errc::internal);
  TaskGroup group_{runtime_};
};

TEST_F(Multistream, AReaderThatHasTakenAllOfASliceLetsGoOfIt) {
  const Slice slice = Slice::copy_of(Bytes(100, 7));
  stream_->unread(slice);
  StreamReader reader(*stream_);
  EXPECT_EQ(runtime_.run(reader.read_exactly(40, runtime_.after(1s)))->size(), 40u);
  EXPECT_FALSE(slice.unique());
  EXPECT_EQ(runtime_.run(reader.read_exactly(60, runtime_.after(1s)))->size(), 60u);
  EXPECT_TRUE(slice.unique());
}

TEST_F(Multistream, ResponderGreetsBeforeItHearsAnything) {
  answer("/chat/1");
  EXPECT_EQ(received(), kHeader);
}

TEST_F(Multistream, ApplicationBytesBehindTheProposalAreNotLost) {
  answer("/chat/1");
  send(kHeader + token("/chat/1") + "payload");
  ASSERT_TRUE(outcome_) << outcome_.error();
  EXPECT_EQ(*outcome_, "/chat/1");
  EXPECT_EQ(received(), kHeader + token("/chat/1"));
  EXPECT_EQ(to_string(stream_->take_unread()), "payload");
}

TEST_F(Multistream, NegotiationMayArriveByteByByte) {
  answer("/chat/1");
  for (char byte : kHeader + token("/chat/1")) send({&byte, 1});
  EXPECT_TRUE(outcome_);
}

TEST_F(Multistream, OthersAndListsAreRefusedUntilOneFits) {
  answer("/chat/1");
  send(kHeader + token("/other") + token("ls") + token("/libp2p/simultaneous-connect"));
  EXPECT_EQ(received(), kHeader + token("na") + token("na") + token("na"));
  EXPECT_FALSE(group_.empty());
  send(token("/chat/1"));
  EXPECT_TRUE(outcome_);
}

TEST_F(Multistream, InitiatorSendsHeaderAndProposalAtOnceAndFallsBack) {
  select({"/new", "/old"});
  EXPECT_EQ(received(), kHeader + token("/new"));
  send(kHeader + token("na"));
  EXPECT_EQ(received(), token("/old"));
  send(token("/old"));
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(*outcome_, "/old");
}

TEST_F(Multistream, RefusalOfEveryProposalIsItsOwnError) {
  select({"/new"});
  send(kHeader + token("na"));
  EXPECT_EQ(outcome_.error(), Errc::protocol_not_supported);
}

TEST_F(Multistream, BadNegotiationsEnd) {
  const struct {
    const char* what;
    std::string bytes;
    std::error_code code;
  } cases[] = {
      {"wrong header", token("/multistream/2.0.0"), make_error_code(Errc::negotiation_failed)},
      {"token of 1025 bytes", kHeader + "\x81\x08", make_error_code(cohive::Errc::limit_exceeded)},
      {"huge length", "\xff\xff\xff\xff\xff\xff\xff\xff\x7f", make_error_code(cohive::Errc::limit_exceeded)},
      {"endless length", std::string(11, '\xff'), make_error_code(cohive::Errc::malformed)},
      {"no newline",
       kHeader + "\x04"
                 "abcd",
       make_error_code(Errc::negotiation_failed)},
      {"empty token", kHeader + std::string(1, '\0'), make_error_code(Errc::negotiation_failed)},
  };
  for (const auto& one : cases) {
    wire_ = test::Wire(runtime_);
    raw_ = wire_.our_end();
    stream_ = std::make_unique<RawStream>(runtime_, *raw_);
    answer("/chat/1");
    send(one.bytes);
    ASSERT_TRUE(group_.empty()) << one.what;
    ASSERT_FALSE(outcome_) << one.what;
    EXPECT_EQ(outcome_.error(), one.code) << one.what << ": " << outcome_.error();
  }
}

TEST_F(Multistream, EndlessProposalsEnd) {
  answer("/chat/1");
  send(kHeader);
  for (int i = 0; i < kMaxProposals; ++i) send(token("/guess/" + std::to_string(i)));
  ASSERT_TRUE(group_.empty());
  EXPECT_EQ(outcome_.error(), Errc::negotiation_failed);
}

TEST_F(Multistream, SilenceAndEarlyEndAreErrors) {
  answer("/chat/1");
  runtime_.run_for(11s);
  EXPECT_EQ(outcome_.error(), cohive::Errc::timeout);
  answer("/chat/1");
  send(kHeader);
  wire_.finish();
  runtime_.run_ready();
  EXPECT_EQ(outcome_.error(), cohive::Errc::end_of_stream);
}

// ---- Optimistic negotiation

Task<void> read_into(Stream& stream, Result<Slice>& out) {
  out = co_await stream.read(Deadline::never());
}

TEST_F(Multistream, LazyProposalTravelsWithTheFirstBytes) {
  auto lazy = select_lazily(std::move(stream_), "/chat/1");
  EXPECT_EQ(lazy->protocol(), "/chat/1");
  EXPECT_EQ(received(), "");
  ASSERT_TRUE(runtime_.run(lazy->write(as_bytes("hello"), Deadline::never())));
  ASSERT_TRUE(runtime_.run(lazy->write(as_bytes(" there"), Deadline::never())));
  EXPECT_EQ(received(), kHeader + token("/chat/1") + "hello there");
  send(kHeader + token("/chat/1") + "answer");
  EXPECT_EQ(as_text(runtime_.run(lazy->read(Deadline::never()))->view()), "answer");
}

TEST_F(Multistream, LazyReaderProposesToo) {
  auto lazy = select_lazily(std::move(stream_), "/chat/1");
  Result<Slice> got = Slice();
  group_.spawn(read_into(*lazy, got));
  runtime_.run_ready();
  EXPECT_EQ(received(), kHeader + token("/chat/1"));
  send(kHeader + token("/chat/1") + "news");
  EXPECT_EQ(as_text(got->view()), "news");
}

TEST_F(Multistream, LazyAnswerMayComeInPiecesAfterATimeout) {
  auto lazy = select_lazily(std::move(stream_), "/chat/1");
  const std::string answer = kHeader + token("/chat/1") + "news";
  for (const std::size_t begin : {0, 5, 25}) {
    const auto got = runtime_.run(lazy->read(runtime_.after(1s)));
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error(), cohive::Errc::timeout);
    send(answer.substr(begin, begin == 0 ? 5 : begin == 5 ? 20 : std::string::npos));
  }
  EXPECT_EQ(as_text(runtime_.run(lazy->read(runtime_.after(1s)))->view()), "news");
}

TEST_F(Multistream, LazyWriteDoesNotOvertakeAProposalThatWaits) {
  auto lazy = select_lazily(std::move(stream_), "/chat/1");
  wire_.stall(true);
  Result<Slice> got = Slice();
  group_.spawn(read_into(*lazy, got));
  runtime_.run_ready();
  group_.spawn([](Stream& s) -> Task<void> { (void)co_await s.write(as_bytes("hello"), Deadline::never()); }(*lazy));
  runtime_.run_ready();
  wire_.stall(false);
  runtime_.run_ready();
  EXPECT_EQ(received(), kHeader + token("/chat/1") + "hello");
  group_.cancel();
}

TEST_F(Multistream, LazyStreamWhoseProposalDidNotLeaveInTimeCarriesNothing) {
  auto lazy = select_lazily(std::move(stream_), "/chat/1");
  wire_.stall(true);
  EXPECT_FALSE(runtime_.run(lazy->write(as_bytes("hello"), runtime_.after(1s))));
  wire_.stall(false);
  EXPECT_FALSE(runtime_.run(lazy->write(as_bytes(" there"), Deadline::never())));
  EXPECT_FALSE(runtime_.run(lazy->read(Deadline::never())));
  EXPECT_EQ(received(), "");
}

TEST_F(Multistream, LazyRefusalStaysAnError) {
  auto lazy = select_lazily(std::move(stream_), "/chat/1");
  ASSERT_TRUE(runtime_.run(lazy->write(as_bytes("hello"), Deadline::never())));
  send(kHeader + token("na") + "junk");
  for (int i = 0; i < 2; ++i) {
    const auto got = runtime_.run(lazy->read(Deadline::never()));
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error(), Errc::protocol_not_supported);
  }
}

}  // namespace
}  // namespace cohive::transport
