// Averagers: rounds over memory of the library, which the caller fills before a trigger and reads after the end; and
// states, which the caller is asked for by events.
#include "cohive/averaging/averager.hpp"

#include <pthread.h>

#include <atomic>
#include <cmath>

#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/power_sgd.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/msgpack.hpp"
#include "cohive/core/on_exit.hpp"
#include "errors.hpp"
#include "events.hpp"
#include "options.hpp"
#include "swarm.hpp"
#include "tensors.hpp"

namespace cohive::c {
namespace {

using averaging::Averager;
using averaging::AveragerOptions;
using averaging::PeerMode;
using averaging::PowerSgd;
using averaging::PowerSgdOptions;
using averaging::StateSharing;
using averaging::StateSharingOptions;
using msgpack::Array;
using msgpack::Bin;
using msgpack::Map;

constexpr Duration kAnswerOfAState = 60s;  // a Python thread may be busy for long
constexpr Duration kNoLimit = std::chrono::hours(24 * 365);

std::atomic<std::uint64_t> next_id{1};

/// The memory of all tensors: of the handle and of the loop's side, whichever lives longer.
using Buffers = std::vector<std::vector<float>>;

// ---- States that the caller is asked for

/// A question for a state. Its answer comes on any thread.
struct StateQuestion {
  explicit StateQuestion(Runtime& on) : answered(on, "a state of the caller"), runtime(&on) {}
  cohive::Event answered;  ///< loop thread
  std::mutex mutex;        ///< of what follows
  Runtime* runtime;        ///< null: nobody waits any more, and the loop may be gone
  std::optional<averaging::SharedState> state;
};

struct StateQuestions {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<StateQuestion>> open;
};

StateQuestions& state_questions() {
  static StateQuestions& all = []() -> StateQuestions& {
    auto& made = *new StateQuestions;
    // A forked child has none of the threads that may hold it.
    ::pthread_atfork([] { state_questions().mutex.lock(); }, [] { state_questions().mutex.unlock(); },
                     [] { state_questions().mutex.unlock(); });
    return made;
  }();
  return all;
}

Task<std::optional<averaging::SharedState>> ask_for_state(Runtime& runtime, std::uint64_t tag) {
  const auto question = std::make_shared<StateQuestion>(runtime);
  const auto over = on_exit([&question] {
    const std::lock_guard lock(question->mutex);
    question->runtime = nullptr;
  });
  const std::uint64_t id = next_id++;
  {
    const std::lock_guard lock(state_questions().mutex);
    std::erase_if(state_questions().open, [](const auto& one) { return one.second.expired(); });
    state_questions().open[id] = question;
  }
  push_event({COHIVE_EVENT_STATE, 0, id, {}, std::to_string(tag)});
  (void)co_await question->answered.wait(runtime.after(kAnswerOfAState));
  const std::lock_guard lock(question->mutex);
  co_return std::move(question->state);
}

// ---- Rounds

struct LoopRound {
  averaging::Round round;
  TicketPtr ticket;
};

/// What of an averager lives on the loop.
struct LoopAverager {
  LoopAverager(Dht& on, std::vector<averaging::TensorInfo> infos, std::shared_ptr<Buffers> memory,
               AveragerOptions wanted, StateSharingOptions sharing, std::optional<PowerSgdOptions> factors,
               std::uint64_t tag)
      : dht(on),
        schema(std::move(infos)),
        buffers(std::move(memory)),
        options(std::move(wanted)),
        states(on, std::move(sharing)),
        event_tag(tag),
        tasks(on.runtime(), "averager of C") {
    if (factors) low_rank.emplace(schema, *factors);
    make();
    states.start();
  }

  void make() {
    averager.reset();  // its handlers first
    if (low_rank) options.scheme = low_rank->scheme();
    std::vector<averaging::AveragedTensor> tensors;
    for (std::size_t i = 0; i < schema.size(); ++i)
      tensors.push_back({(*buffers)[i], schema[i].shape, schema[i].requires_grad, schema[i].dtype, schema[i].role, {}});
    averager = std::make_unique<Averager>(dht, std::move(tensors), options);
    averager->start();
  }

  void share(bool allowed, double priority) {
    if (allowed == shared) {
    } else if (!allowed) {
      states.set_async_provider(nullptr);
    } else if (low_rank) {  // factors that newcomers need
      states.set_provider(low_rank->provider(averager->group_bits()));
    } else {
      states.set_async_provider([&runtime = dht.runtime(), tag = event_tag] { return ask_for_state(runtime, tag); });
    }
    shared = allowed;
    if (allowed) states.set_priority(priority);
  }

  Dht& dht;
  std::vector<averaging::TensorInfo> schema;
  std::shared_ptr<Buffers> buffers;
  AveragerOptions options;
  std::optional<PowerSgd> low_rank;  ///< of an averager by low-rank factors
  std::unique_ptr<Averager> averager;
  StateSharing states;
  std::uint64_t event_tag;
  bool shared = false;
  std::map<std::uint64_t, std::shared_ptr<LoopRound>> rounds;
  TaskGroup tasks;
};

std::string described(const averaging::RoundReport& result) {
  Array gathered;
  for (const auto& member : result.group)
    gathered.items.emplace_back(Array{{Bin{std::string(as_text(member.peer.bytes()))}, member.data}});
  return msgpack::encode(Map{{{"gathered", std::move(gathered)},
                              {"group_id", Bin{result.group_id}},
                              {"parts_total", std::uint64_t{result.parts_total}},
                              {"parts_failed", std::uint64_t{result.parts_failed}},
                              {"bytes_sent", result.bytes_sent},
                              {"bytes_received", result.bytes_received},
                              {"matchmaking", to_seconds(result.matchmaking)},
                              {"allreduce", to_seconds(result.allreduce)}}});
}

Task<void> serve_round(LoopAverager& self, std::uint64_t id, std::shared_ptr<LoopRound> entry) {
  const EndGuard guard(entry->ticket);
  try {
    auto result = co_await entry->round.result();
    self.rounds.erase(id);
    if (result)
      entry->ticket->end(described(*result));
    else
      entry->ticket->end(result.error() == averaging::Errc::round_cancelled
                             ? Error(cohive::Errc::cancelled, "the round was given up")
                             : result.error());
  } catch (...) {
    self.rounds.erase(id);
    entry->ticket->end_by_exception();
  }
}

Task<void> until_given_up(std::shared_ptr<cohive::Event> event) {
  co_await event->wait();
}

Task<void> serve_download(LoopAverager& self, averaging::DownloadOptions options, TicketPtr ticket) {
  const EndGuard guard(ticket);
  auto& runtime = self.dht.runtime();
  const auto given_up = std::make_shared<cohive::Event>(runtime, "given up");
  ticket->on_cancel([&runtime, weak = std::weak_ptr(given_up)] {
    runtime.post([weak] {
      if (const auto event = weak.lock()) event->set();
    });
  });
  try {
    auto first = co_await race(runtime, self.states.download(std::move(options)), until_given_up(given_up));
    if (first.index() == 1) {
      ticket->end(Error(cohive::Errc::cancelled, "the download was given up"));
    } else if (auto& state = std::get<0>(first); !state) {
      ticket->end(state.error());
    } else {
      if (self.low_rank) {
        auto loaded = co_await self.low_rank->load(runtime, *state);
        if (!loaded) {
          ticket->end(loaded.error());
          co_return;
        }
      }
      auto told = msgpack::encode(Map{{{"metadata", std::move(state->metadata)},
                                       {"donor", Bin{std::string(as_text(state->donor.bytes()))}},
                                       {"tensors", std::uint64_t{state->tensors.size()}}}});
      ticket->end(std::move(told), std::move(state->tensors));
    }
  } catch (...) {
    ticket->end_by_exception();
  }
}

/// Tells the members of the last group, serves those that still wait, and drops the averager.
/// \param self  null: it was dropped before
Task<Result<std::string>> leave(std::shared_ptr<LoopAverager> self, Deadline deadline) {
  if (!self) co_return Error(cohive::Errc::closed, "it was shut down");
  self->share(false, 0);
  for (const auto& [round, entry] : self->rounds) entry->round.cancel();
  co_await self->averager->leave(deadline);
  co_await self->averager->drain(deadline);
  co_return std::string("\xc0");  // nil
}

AveragerOptions read_averager_options(OptionReader& reader, StateSharingOptions& sharing,
                                      std::optional<PowerSgdOptions>& low_rank) {
  AveragerOptions options;
  options.allreduce_timeout = Duration::zero();
  std::string mode = "node";
  double bandwidth = 0;
  reader.read("prefix", options.prefix);
  reader.read("class_name", options.class_name);
  reader.read("target_group_size", options.target_group_size);
  reader.read("min_group_size", options.min_group_size, 2);
  reader.read("initial_group_bits", options.initial_group_bits);
  reader.read("min_matchmaking_time", options.min_matchmaking_time);
  reader.read("request_timeout", options.request_timeout);
  reader.read("part_size_bytes", options.part_size_bytes, 1);
  reader.read("allreduce_timeout", options.allreduce_timeout);
  reader.read("sender_timeout", options.sender_timeout);
  reader.read("reducer_timeout", options.reducer_timeout);
  std::size_t min_vector_size = 0;
  if (reader.read("min_vector_size", min_vector_size)) options.min_vector_size = min_vector_size;
  if (reader.read("bandwidth", bandwidth)) options.bandwidth = bandwidth;
  reader.read("mode", mode);
  reader.read("declare_state_period", sharing.declare_period);
  PowerSgdOptions factors;
  if (reader.read("averager_rank", factors.averager_rank, 1)) low_rank = factors;
  if (reader.read("min_compression_ratio", factors.min_compression_ratio)) {
    if (!low_rank) refuse("min_compression_ratio goes with averager_rank: set it, too");
    low_rank = factors;
  }
  reader.finish();
  if (mode != "node" && mode != "client" && mode != "auxiliary")
    refuse("mode must be \"node\", \"client\" or \"auxiliary\", not " + log::quoted(mode));
  options.mode = mode == "node" ? PeerMode::node : mode == "client" ? PeerMode::client : PeerMode::auxiliary;
  sharing.prefix = options.prefix;
  sharing.class_name = options.class_name;
  sharing.codec = by_codec_name();
  sharing.share = options.mode != PeerMode::client;
  return options;
}

/// Describes the tensors, with their codecs by their places.
std::vector<averaging::TensorInfo> read_schema(const cohive_tensor* tensors, std::size_t count, Buffers& buffers,
                                               codec::Compression& codecs) {
  if (count == 0) refuse("an averager needs tensors");
  there(tensors, "tensors");
  std::vector<averaging::TensorInfo> schema;
  std::vector<codec::Compression> by_index;
  for (std::size_t i = 0; i < count; ++i) {
    schema.push_back({shape_of(tensors[i]), dtype_of(tensors[i]), tensors[i].requires_grad != 0});
    by_index.emplace_back(codec_of(tensors[i]));
    buffers.emplace_back(schema.back().elements());
  }
  codecs = codec::Compression::per_tensor(std::move(by_index));
  return schema;
}

}  // namespace
}  // namespace cohive::c

using namespace cohive::c;
namespace averaging = cohive::averaging;
namespace msgpack = cohive::msgpack;

struct cohive_averager {
  std::shared_ptr<SwarmState> swarm;
  std::uint64_t id;
  std::shared_ptr<Buffers> buffers;
  Origin origin;
};

struct cohive_round {
  std::shared_ptr<SwarmState> swarm;
  std::uint64_t averager, id;
  Origin origin;
};

namespace cohive::c {
namespace {

/// Runs `body(averager)` on the loop, and waits for it.
template <class F>
std::int32_t with_averager(cohive_averager* handle, F body) noexcept {
  return with_handle(handle, "averager", [&] {
    handle->swarm->on_loop([&](train::Membership&) { body(handle->swarm->object<LoopAverager>(handle->id)); });
  });
}

/// The same with a round; null where it has ended.
template <class F>
std::int32_t with_round(cohive_round* handle, F body) noexcept {
  return with_handle(handle, "round", [&] {
    handle->swarm->on_loop([&](train::Membership&) {
      auto& rounds = handle->swarm->object<LoopAverager>(handle->averager).rounds;
      const auto found = rounds.find(handle->id);
      body(found == rounds.end() ? nullptr : &found->second->round);
    });
  });
}

}  // namespace
}  // namespace cohive::c

std::int32_t cohive_averager_open(cohive_swarm* swarm, const char* options, std::uint64_t tag,
                                  const cohive_tensor* tensors, std::size_t count, cohive_averager** averager) {
  return with_swarm(swarm, [&](SwarmState& state) {
    there(averager, "averager") = nullptr;
    OptionReader reader(options);
    StateSharingOptions sharing;
    std::optional<PowerSgdOptions> low_rank;
    auto wanted = read_averager_options(reader, sharing, low_rank);
    const auto buffers = std::make_shared<Buffers>();
    auto schema = read_schema(tensors, count, *buffers, wanted.codec);
    const std::uint64_t id = next_id++;
    auto handle = std::make_unique<cohive_averager>(swarm->state, id, buffers, Origin());
    state.on_loop([&](cohive::train::Membership& membership) {
      state.keep(id, std::make_shared<LoopAverager>(*membership.dht, std::move(schema), buffers, std::move(wanted),
                                                    std::move(sharing), low_rank, tag));
    });
    *averager = handle.release();
  });
}

std::int32_t cohive_averager_buffer(cohive_averager* averager, std::size_t tensor, float** values, std::size_t* count) {
  return with_handle(averager, "averager", [&] {
    if (tensor >= averager->buffers->size()) return fail(COHIVE_NOT_FOUND, "there is no such tensor");
    there(values, "values") = (*averager->buffers)[tensor].data();
    there(count, "count") = (*averager->buffers)[tensor].size();
    return static_cast<std::int32_t>(COHIVE_OK);
  });
}

std::int32_t cohive_averager_begin(cohive_averager* averager, const std::uint8_t* gather, std::size_t size,
                                   const char* options, cohive_round** round, cohive_ticket** ended) {
  return guarded([&] {
    there(round, "round") = nullptr;
    there(ended, "ended") = nullptr;
    if (there(averager, "averager").origin.elsewhere()) return fail_elsewhere(averager->origin);
    OptionReader reader(options);
    averaging::RoundOptions wanted;
    double scheduled = 0;
    reader.read("timeout", wanted.timeout);
    if (reader.read("scheduled_time", scheduled)) wanted.scheduled_time = scheduled;
    reader.read("allow_retries", wanted.allow_retries);
    reader.finish();
    wanted.timeout = std::min(wanted.timeout, kNoLimit);
    if (size > 0) {
      auto decoded = msgpack::decode({&there(gather, "gather"), size}, averaging::kMaxGatheredValues);
      if (!decoded) throw cohive::ErrorException(decoded.error().with_context("gather"));
      wanted.gather = std::move(*decoded);
    }
    const std::uint64_t id = next_id++;
    auto ticket = std::make_shared<Ticket>();
    std::unique_ptr<cohive_ticket> ticket_handle(handle_of(ticket));
    auto handle = std::make_unique<cohive_round>(averager->swarm, averager->id, id, Origin());
    bool busy = false;
    averager->swarm->on_loop([&](cohive::train::Membership& membership) {
      auto& self = averager->swarm->object<LoopAverager>(averager->id);
      if ((busy = !self.rounds.empty())) return;
      auto entry = std::make_shared<LoopRound>(self.averager->begin(std::move(wanted)), ticket);
      self.rounds[id] = entry;
      ticket->on_cancel([&runtime = membership.runtime(), weak = std::weak_ptr(entry)] {
        runtime.post([weak] {
          if (const auto there = weak.lock()) there->round.cancel();
        });
      });
      self.tasks.spawn(serve_round(self, id, std::move(entry)), "round of C");
    });
    if (busy) return fail(COHIVE_REFUSED, "another round of this averager goes on");
    *round = handle.release();
    *ended = ticket_handle.release();
    return static_cast<std::int32_t>(COHIVE_OK);
  });
}

std::int32_t cohive_averager_group_bits(cohive_averager* averager, cohive_bytes* bits) {
  return with_averager(averager, [&](LoopAverager& self) { give(bits, self.averager->group_bits()); });
}

std::int32_t cohive_averager_set_group_bits(cohive_averager* averager, const char* bits) {
  return with_averager(averager, [&](LoopAverager& self) {
    if (!self.rounds.empty()) refuse("group bits are set between rounds");
    const std::string wanted = &there(bits, "bits");
    if (wanted.find_first_not_of("01") != std::string::npos) refuse("group bits are a text of 0 and 1");
    self.options.initial_group_bits = wanted;
    self.make();
  });
}

std::int32_t cohive_averager_share(cohive_averager* averager, std::int32_t allowed, double priority) {
  return with_averager(averager, [&](LoopAverager& self) {
    if (!std::isfinite(priority)) refuse("a priority must be finite");
    if (allowed && self.options.mode == PeerMode::client) refuse("a client cannot share its state");
    self.share(allowed != 0, priority);
  });
}

std::int32_t cohive_averager_download(cohive_averager* averager, const char* options, cohive_ticket** downloaded) {
  return guarded([&] {
    there(downloaded, "downloaded") = nullptr;
    OptionReader reader(options);
    averaging::DownloadOptions wanted;
    std::size_t most = 0;
    reader.read("timeout", wanted.limit);
    if (reader.read("max_bytes", most, 1)) wanted.max_bytes = most;
    reader.finish();
    wanted.limit = std::min(wanted.limit, kNoLimit);
    auto ticket = std::make_shared<Ticket>();
    std::unique_ptr<cohive_ticket> handle(handle_of(ticket));
    const auto begun = with_averager(averager, [&](LoopAverager& self) {
      self.tasks.spawn(serve_download(self, std::move(wanted), ticket), "download of C");
    });
    if (begun == COHIVE_OK) *downloaded = handle.release();
    return begun;
  });
}

std::int32_t cohive_averager_close(cohive_averager* averager, double seconds, cohive_ticket** closed) {
  return guarded([&] {
    there(closed, "closed") = nullptr;
    if (there(averager, "averager").origin.elsewhere()) return fail_elsewhere(averager->origin);
    if (!(seconds >= 0)) refuse("seconds must not be negative");
    auto ticket = std::make_shared<Ticket>();
    averager->swarm->begin(
        ticket, [swarm = averager->swarm.get(), id = averager->id, seconds](cohive::train::Membership& on) {
          return leave(swarm->take<LoopAverager>(id), on.runtime().after(cohive::from_seconds(seconds)));
        });
    *closed = handle_of(std::move(ticket));
    return static_cast<std::int32_t>(COHIVE_OK);
  });
}

void cohive_averager_free(cohive_averager* averager) {
  if (!averager || averager->origin.elsewhere()) return;
  (void)guarded(
      [&] { averager->swarm->on_loop([&](cohive::train::Membership&) { averager->swarm->drop(averager->id); }); });
  delete averager;
}

std::int32_t cohive_round_trigger(cohive_round* round, double weight) {
  return with_round(round, [&](averaging::Round* open) {
    if (!(weight >= 0) || !std::isfinite(weight)) refuse("a weight must be finite and not negative");
    if (open) open->trigger(weight);
  });
}

std::int32_t cohive_round_reschedule(cohive_round* round, double unix_time) {
  return with_round(round, [&](averaging::Round* open) {
    if (!std::isfinite(unix_time)) refuse("a time must be finite");
    if (open) open->reschedule(unix_time);
  });
}

std::int32_t cohive_round_stage(cohive_round* round, std::int32_t* stage) {
  return with_round(round, [&](averaging::Round* open) {
    using enum averaging::Round::Stage;
    const auto now = open ? open->stage() : finished;
    there(stage, "stage") = now == looking_for_group ? 1 : now == awaiting_trigger ? 2 : now == running ? 3 : 4;
  });
}

void cohive_round_free(cohive_round* round) {
  if (round && !round->origin.elsewhere()) delete round;
}

std::int32_t cohive_state_answer(std::uint64_t tag, const std::uint8_t* metadata, std::size_t size,
                                 const cohive_tensor* tensors, std::size_t count) {
  return guarded([&] {
    std::shared_ptr<StateQuestion> question;
    {
      const std::lock_guard lock(state_questions().mutex);
      if (const auto found = state_questions().open.find(tag); found != state_questions().open.end()) {
        question = found->second.lock();
        state_questions().open.erase(found);
      }
    }
    constexpr const char* kNobody = "nobody waits for this state any more";
    if (!question) return fail(COHIVE_NOT_FOUND, kNobody);
    std::optional<averaging::SharedState> state;
    // Whatever is wrong with the answer, whoever waits for it goes on.
    const auto outcome = guarded([&] {
      if (!metadata) return;
      auto decoded = msgpack::decode({metadata, size});
      if (!decoded) throw cohive::ErrorException(decoded.error().with_context("metadata"));
      const auto* map = decoded->get_if<msgpack::Map>();
      if (!map || map->entries.empty()) refuse("the metadata of a state is a map that is not empty");
      averaging::SharedState made{std::move(*decoded), {}};
      if (count > 0) there(tensors, "tensors");
      for (std::size_t i = 0; i < count; ++i) {
        made.tensors.push_back(copy_of(tensors[i]));
        const auto& copy = made.tensors.back();
        made.infos.push_back({std::string(cohive::codec::name_of(codec_of(tensors[i]))), copy.shape, copy.dtype});
      }
      state = std::move(made);
    });
    const std::lock_guard lock(question->mutex);
    if (!question->runtime) return fail(COHIVE_NOT_FOUND, kNobody);  // it was left while the state was copied
    question->state = std::move(state);
    question->runtime->post([question] { question->answered.set(); });
    return outcome;
  });
}
