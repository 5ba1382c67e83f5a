// What a program in C sees: codes, sentences, tickets, events, and what a child of fork() finds.
#include "cohive/cohive.h"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>

#include "handles.hpp"
#include "support/sanitizers.hpp"

namespace {

using namespace c_tests;
using testing::HasSubstr;

/// [[key, value, in a minute]]; the texts have fewer than 32 bytes.
std::string record(const std::string& key, const std::string& packed_value) {
  const double expiration = static_cast<double>(std::time(nullptr)) + 60;
  std::uint64_t bits;
  std::memcpy(&bits, &expiration, sizeof bits);
  std::string result = "\x91\x93";
  result += static_cast<char>(0xa0 | key.size());
  result += key + packed_value + "\xcb";
  for (int shift = 56; shift >= 0; shift -= 8) result += static_cast<char>(bits >> shift);
  return result;
}

std::int32_t store(cohive_swarm* swarm, const std::string& records, TicketOwner& ticket) {
  const auto begun = cohive_dht_store(swarm, raw(records), records.size(), nullptr, &ticket.handle);
  return begun == COHIVE_OK ? cohive_ticket_wait(ticket.handle, kLong) : begun;
}

std::int32_t get(cohive_swarm* swarm, const std::string& keys, TicketOwner& ticket) {
  const auto begun = cohive_dht_get(swarm, raw(keys), keys.size(), R"({"latest": true})", &ticket.handle);
  return begun == COHIVE_OK ? cohive_ticket_wait(ticket.handle, kLong) : begun;
}

TEST(C, KnowsItsVersionAndTheNamesOfItsCodes) {
  EXPECT_EQ(cohive_abi_version(), COHIVE_ABI_VERSION);
  EXPECT_STREQ(cohive_version(), "0.1.0");
  EXPECT_STREQ(cohive_code_name(COHIVE_OK), "ok");
  EXPECT_STREQ(cohive_code_name(COHIVE_INTERNAL), "internal");
  EXPECT_STREQ(cohive_code_name(-1), "unknown");
  EXPECT_STREQ(cohive_code_name(COHIVE_INTERNAL + 1), "unknown");
}

TEST(C, RefusesOptionsThatCannotBeMeantBeforeAnyWork) {
  const struct {
    const char *options, *sentence;
  } cases[] = {
      {"{\"client_mod\": true}", "there is no option \"client_mod\"; did you mean client_mode?"},
      {"{\"zzzzzzzzzzzz\": 1}", "there is no option \"zzzzzzzzzzzz\""},
      {"{\"client_mode\": 1}", "client_mode must be true or false, not 1"},
      {"{\"num_replicas\": 0}", "num_replicas must be an integer from 1 on, not 0"},
      {"{\"num_replicas\": -3}", "num_replicas must be an integer from 1 on, not -3"},
      {"{\"wait_timeout\": -1}", "wait_timeout must be a number of seconds from 0 on, not -1"},
      {"{\"initial_peers\": \"/ip4\"}", "initial_peers must be an array of texts"},
      {"{\"initial_peers\": [\"/ip4/127.0.0.1/tcp/1\"]}", "/ip4/127.0.0.1/tcp/1 does not end with /p2p/PEER_ID"},
      {"{\"host_maddrs\": [\"bogus\"]}", "bogus"},
      {"[]", "options must be a JSON object"},
      {"{", "options must be a JSON object"},
      {"{\"trace_file\": \"\xff\"}", "options must be a JSON object"},
  };
  for (const auto& [options, sentence] : cases) {
    cohive_swarm* swarm = nullptr;
    cohive_ticket* ticket = nullptr;
    EXPECT_EQ(cohive_swarm_open(options, nullptr, 0, &swarm, &ticket), COHIVE_INVALID_ARGUMENT) << options;
    EXPECT_THAT(cohive_last_error(), HasSubstr(sentence));
    EXPECT_EQ(swarm, nullptr);
    EXPECT_EQ(ticket, nullptr);
  }
  EXPECT_EQ(cohive_log_configure("{\"level\": \"loud\"}"), COHIVE_INVALID_ARGUMENT);
  EXPECT_EQ(cohive_swarm_open(kAlone, nullptr, 0, nullptr, nullptr), COHIVE_INVALID_ARGUMENT);
  EXPECT_EQ(cohive_ticket_wait(nullptr, 0), COHIVE_INVALID_ARGUMENT);
  cohive_ticket_free(nullptr);
  cohive_swarm_free(nullptr);
  cohive_validator_free(nullptr);
  cohive_bytes_free(nullptr);
}

/// While it lives, no thread can be made: its stack would take half of all addresses.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    EXPECT_EQ(::pthread_getattr_default_np(&before_), 0);
    pthread_attr_t huge;
    EXPECT_EQ(::pthread_attr_init(&huge), 0);
    EXPECT_EQ(::pthread_attr_setstacksize(&huge, SIZE_MAX / 2), 0);
    EXPECT_EQ(::pthread_setattr_default_np(&huge), 0);
    ::pthread_attr_destroy(&huge);
  }
  ~NoMoreThreads() {
    EXPECT_EQ(::pthread_setattr_default_np(&before_), 0);
    ::pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST(C, SaysThatThereIsNoThreadToJoinOn) {
  cohive_swarm* swarm = nullptr;
  TicketOwner joined;
  {
    const NoMoreThreads none;
    EXPECT_EQ(cohive_swarm_open(kAlone, nullptr, 0, &swarm, &joined.handle), COHIVE_INTERNAL);
  }
  EXPECT_EQ(swarm, nullptr);
  EXPECT_EQ(joined.handle, nullptr);
}

TEST(C, WaitsWithTheLongestTimeoutsForWhatTakesAWhile) {
  constexpr auto kLongest = std::numeric_limits<std::int64_t>::max();
  cohive_swarm* swarm = nullptr;
  TicketOwner joined, stored, closed;
  ASSERT_EQ(cohive_swarm_open(kAlone, nullptr, 0, &swarm, &joined.handle), COHIVE_OK);
  ASSERT_EQ(cohive_ticket_notify(joined.handle, 78), COHIVE_OK);
  cohive_event event{};
  while (event.kind != COHIVE_EVENT_TICKET || event.tag != 78)
    ASSERT_EQ(cohive_event_next(kLongest, &event), COHIVE_OK);
  const std::string records = record("greeting", "\xa5hello");
  ASSERT_EQ(cohive_dht_store(swarm, raw(records), records.size(), nullptr, &stored.handle), COHIVE_OK);
  EXPECT_EQ(cohive_ticket_wait(stored.handle, kLongest), COHIVE_OK) << cohive_last_error();
  ASSERT_EQ(cohive_swarm_close(swarm, &closed.handle), COHIVE_OK);
  EXPECT_EQ(cohive_ticket_wait(closed.handle, kLongest), COHIVE_OK) << cohive_last_error();
  cohive_swarm_free(swarm);
}

TEST(C, StoresAtOnePeerWhatAnotherFinds) {
  SwarmOwner first(kAlone), second(joining(first.address()));
  TicketOwner stored, found, missing;
  ASSERT_EQ(store(first.handle, record("greeting", "\xa5hello"), stored), COHIVE_OK);
  EXPECT_EQ(bytes_of(stored.handle), "\x91\xc0");
  ASSERT_EQ(get(second.handle, "\x91\xa8greeting", found), COHIVE_OK);
  EXPECT_EQ(bytes_of(found.handle).substr(0, 8), "\x91\x92\xa5hello");
  ASSERT_EQ(get(second.handle, "\x91\xa7nothing", missing), COHIVE_OK);
  EXPECT_EQ(bytes_of(missing.handle), "\x91\xc0");
}

TEST(C, RefusesRecordsThatAreNone) {
  SwarmOwner alone(kAlone);
  for (const std::string& records :
       {std::string("\x91\x90"), std::string("\xa1x"), std::string("\x91\x93\xa1k\xa1v\xa1x"), std::string("\x92"),
        std::string("\xc1")}) {
    TicketOwner stored;
    EXPECT_EQ(store(alone.handle, records, stored), COHIVE_INVALID_ARGUMENT);
    EXPECT_EQ(stored.handle, nullptr);
  }
}

TEST(C, GivesJoiningUpWhenItsTicketIsCancelled) {
  // A machine that takes connections and never says a word.
  const int silent = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(silent, 8), 0);
  ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string peer = "/ip4/127.0.0.1/tcp/" + std::to_string(ntohs(address.sin_port)) +
                           "/p2p/QmdaK4LUeQaKhqSFPRu9N7MvXUEWDxWwtCvPrS444tCgd1";
  cohive_swarm* swarm = nullptr;
  TicketOwner joined, other;
  ASSERT_EQ(cohive_swarm_open(joining(peer).c_str(), nullptr, 0, &swarm, &joined.handle), COHIVE_OK);
  EXPECT_EQ(cohive_ticket_wait(joined.handle, 50), COHIVE_PENDING);
  EXPECT_EQ(cohive_swarm_status(swarm, &other.handle), COHIVE_CLOSED);
  const auto begin = Clock::now();
  EXPECT_EQ(cohive_ticket_cancel(joined.handle), COHIVE_OK);
  EXPECT_EQ(cohive_ticket_wait(joined.handle, kLong), COHIVE_CANCELLED);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));  // an attempt takes three times as long
  cohive_swarm_free(swarm);
  ::close(silent);
}

TEST(C, TellsOfTheEndOfTicketsAndOfTheLogByEvents) {
  ASSERT_EQ(cohive_log_configure(R"({"level": "warn", "to": "events"})"), COHIVE_OK);
  cohive_swarm* swarm = nullptr;
  TicketOwner joined;
  // Nobody listens on port 1; alone, it says so by a warning and is there.
  const auto options =
      joining("/ip4/127.0.0.1/tcp/1/p2p/QmdaK4LUeQaKhqSFPRu9N7MvXUEWDxWwtCvPrS444tCgd1", ", \"bootstrap\": true");
  ASSERT_EQ(cohive_swarm_open(options.c_str(), nullptr, 0, &swarm, &joined.handle), COHIVE_OK);
  ASSERT_EQ(cohive_ticket_notify(joined.handle, 77), COHIVE_OK);
  bool ended = false, warned = false;
  while (!ended) {
    cohive_event event;
    ASSERT_EQ(cohive_event_next(kLong, &event), COHIVE_OK);
    ended |= event.kind == COHIVE_EVENT_TICKET && event.tag == 77;
    warned |= event.kind == COHIVE_EVENT_LOG && std::string(event.text).find("alone for now") != std::string::npos;
  }
  EXPECT_TRUE(warned);
  EXPECT_EQ(cohive_ticket_wait(joined.handle, 0), COHIVE_OK) << cohive_last_error();
  cohive_event_wake();
  cohive_event event;
  std::int32_t last = COHIVE_OK;
  while (last == COHIVE_OK) last = cohive_event_next(-1, &event);
  EXPECT_EQ(last, COHIVE_PENDING);
  TicketOwner closed, none;
  ASSERT_EQ(cohive_swarm_close(swarm, &closed.handle), COHIVE_OK);
  EXPECT_EQ(cohive_ticket_wait(closed.handle, kLong), COHIVE_OK);
  EXPECT_EQ(cohive_swarm_status(swarm, &none.handle), COHIVE_CLOSED);
  cohive_swarm_free(swarm);
  EXPECT_EQ(cohive_log_configure("{}"), COHIVE_OK);
}

TEST(C, AsksTheProgramWhetherARecordMayBeHeld) {
  cohive_validator* validator = nullptr;
  ASSERT_EQ(cohive_validator_custom(5, 0, 10.0, &validator), COHIVE_OK);
  SwarmOwner alone(kAlone, validator);
  cohive_validator_free(validator);  // the swarm keeps it
  std::jthread judge([](std::stop_token stop) {
    while (!stop.stop_requested()) {
      cohive_event event;
      if (cohive_event_next(50, &event) != COHIVE_OK || event.kind != COHIVE_EVENT_VALIDATE) continue;
      EXPECT_EQ(static_cast<std::uint8_t>(event.text[1]), 5);  // an array, and its first item
      const bool good = std::string(event.text, event.size).find("good") != std::string::npos;
      EXPECT_EQ(cohive_event_answer(event.tag, good), COHIVE_OK);
    }
  });
  TicketOwner good, bad, found;
  ASSERT_EQ(store(alone.handle, record("key", "\xa4good"), good), COHIVE_OK);
  EXPECT_EQ(bytes_of(good.handle), "\x91\xc0");
  ASSERT_EQ(store(alone.handle,
                  record("key",
                         "\xa3"
                         "bad"),
                  bad),
            COHIVE_OK);
  EXPECT_EQ(static_cast<std::uint8_t>(bytes_of(bad.handle)[2]), COHIVE_INVALID_RECORD);
  ASSERT_EQ(get(alone.handle, "\x91\xa3key", found), COHIVE_OK);
  EXPECT_EQ(bytes_of(found.handle).substr(0, 7), "\x91\x92\xa4good");
  EXPECT_EQ(cohive_event_answer(123456, 1), COHIVE_NOT_FOUND);
}

TEST(C, SignsWithAKeyThatComesBack) {
  cohive_validator *first = nullptr, *second = nullptr, *custom = nullptr;
  ASSERT_EQ(cohive_validator_rsa(nullptr, 0, &first), COHIVE_OK);
  cohive_bytes description{}, signature{};
  ASSERT_EQ(cohive_validator_describe(first, &description), COHIVE_OK);
  const std::string facts(reinterpret_cast<const char*>(description.data), description.size);
  const std::size_t key = facts.find("ssh-rsa "), end = facts.find_first_of("\xa6\xc4", key);
  const std::string public_key = facts.substr(key, end - key);
  ASSERT_EQ(cohive_rsa_sign(first, raw("data"), 4, &signature), COHIVE_OK);
  EXPECT_EQ(cohive_rsa_verify(public_key.c_str(), raw("data"), 4, signature.data, signature.size), COHIVE_OK);
  EXPECT_EQ(cohive_rsa_verify(public_key.c_str(), raw("dat!"), 4, signature.data, signature.size),
            COHIVE_INVALID_RECORD);
  EXPECT_EQ(cohive_rsa_verify("ssh-rsa nonsense", raw("data"), 4, signature.data, signature.size),
            COHIVE_INVALID_RECORD);
  EXPECT_EQ(cohive_validator_rsa(raw("no key"), 6, &second), COHIVE_INVALID_ARGUMENT);
  ASSERT_EQ(cohive_validator_custom(1, 0, 1.0, &custom), COHIVE_OK);
  EXPECT_EQ(cohive_rsa_sign(custom, raw("data"), 4, &signature), COHIVE_INVALID_ARGUMENT);
  EXPECT_EQ(cohive_validator_custom(1, 0, 0.0, &second), COHIVE_INVALID_ARGUMENT);
  cohive_bytes_free(&description);
  cohive_bytes_free(&signature);
  EXPECT_EQ(description.data, nullptr);
  cohive_validator_free(custom);
  cohive_validator_free(first);
}

std::size_t open_sockets() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry, gone).string().starts_with("socket:");
  }
  return count;
}

TEST(C, LeavesNothingBehindWhenAnyTicketOfItsEndHasEnded) {
  const std::size_t before = open_sockets();
  cohive_swarm* swarm = nullptr;
  TicketOwner joined, first, second;
  ASSERT_EQ(cohive_swarm_open(kAlone, nullptr, 0, &swarm, &joined.handle), COHIVE_OK);
  ASSERT_EQ(cohive_ticket_wait(joined.handle, kLong), COHIVE_OK);
  EXPECT_GT(open_sockets(), before);
  ASSERT_EQ(cohive_swarm_close(swarm, &first.handle), COHIVE_OK);
  ASSERT_EQ(cohive_swarm_close(swarm, &second.handle), COHIVE_OK);
  while (cohive_ticket_wait(first.handle, 0) == COHIVE_PENDING &&
         cohive_ticket_wait(second.handle, 0) == COHIVE_PENDING)
    std::this_thread::yield();
  EXPECT_LE(open_sockets(), before);
  EXPECT_EQ(cohive_ticket_wait(first.handle, kLong), COHIVE_OK);
  EXPECT_EQ(cohive_ticket_wait(second.handle, kLong), COHIVE_OK);
  cohive_swarm_free(swarm);
}

TEST(C, ATrackerThatIsFreedMeanwhileStillSaysGoodbye) {
  SwarmOwner first(kAlone), second(joining(first.address()));
  cohive_tracker* tracker = nullptr;
  ASSERT_EQ(cohive_tracker_open(second.handle, R"({"run_id": "run", "target_batch_size": 8})", &tracker), COHIVE_OK);
  ASSERT_EQ(cohive_tracker_report(tracker, 0, 4), COHIVE_OK);
  TicketOwner closed, again;
  cohive_bytes progress{};
  ASSERT_EQ(cohive_tracker_close(tracker, &closed.handle), COHIVE_OK);
  EXPECT_EQ(cohive_tracker_snapshot(tracker, &progress), COHIVE_CLOSED);
  ASSERT_EQ(cohive_tracker_close(tracker, &again.handle), COHIVE_OK);
  cohive_tracker_free(tracker);
  EXPECT_EQ(cohive_ticket_wait(closed.handle, kLong), COHIVE_OK) << cohive_last_error();
  EXPECT_EQ(cohive_ticket_wait(again.handle, kLong), COHIVE_CLOSED);
}

TEST(C, LeavesAForkedChildNoSocketAndADeadHandle) {
  if (cohive::kSanitized) GTEST_SKIP() << "sanitizers do not follow threads that begin after a fork";
  const std::size_t before = open_sockets();
  SwarmOwner first(kAlone), second(joining(first.address()));
  EXPECT_GT(open_sockets(), before);
  const pid_t child = ::fork();
  if (child == 0) {
    TicketOwner status;
    if (open_sockets() != before) ::_exit(1);
    if (cohive_swarm_status(first.handle, &status.handle) != COHIVE_FORKED) ::_exit(2);
    const std::string sentence = "cohive: this object belongs to process " + std::to_string(::getppid());
    if (!std::string(cohive_last_error()).starts_with(sentence)) ::_exit(3);
    cohive_swarm_free(first.handle);  // nothing
    // It can join by itself.
    cohive_swarm* own = nullptr;
    TicketOwner joined, stored;
    if (cohive_swarm_open(joining(second.address()).c_str(), nullptr, 0, &own, &joined.handle) != COHIVE_OK) ::_exit(4);
    if (cohive_ticket_wait(joined.handle, kLong) != COHIVE_OK) ::_exit(5);
    if (store(own, record("child", "\xa2ok"), stored) != COHIVE_OK) ::_exit(6);
    ::_exit(0);
  }
  int outcome = -1;
  ASSERT_EQ(::waitpid(child, &outcome, 0), child);
  ASSERT_TRUE(WIFEXITED(outcome));
  EXPECT_EQ(WEXITSTATUS(outcome), 0);
  TicketOwner found;
  ASSERT_EQ(get(second.handle,
                "\x91\xa5"
                "child",
                found),
            COHIVE_OK);
  EXPECT_EQ(bytes_of(found.handle).substr(0, 5), "\x91\x92\xa2ok");
}

}  // namespace
