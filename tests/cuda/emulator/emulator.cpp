#include "emulator.hpp"

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define COHIVE_FIBERS_OF_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COHIVE_FIBERS_OF_ASAN 1
#endif
#endif
#ifdef COHIVE_FIBERS_OF_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Of all __shared__ variables, and of where the zones in front of them are; without any there are no such sections.
extern "C" __attribute__((weak)) std::uint8_t __start_cohive_shared[], __stop_cohive_shared[];
extern "C" __attribute__((weak)) std::uint8_t *__start_cohive_zones[], *__stop_cohive_zones[];

namespace cohive::cuda::emulated {
namespace {

constexpr std::size_t kZone = 64 * 1024;                   // bytes on either side of a buffer
constexpr std::size_t kKeptFreed = std::size_t{16} << 20;  // bytes whose use after their end is found
constexpr std::size_t kStack = 128 * 1024;                 // of a fiber
constexpr std::size_t kMostFindings = 5;                   // of a launch
constexpr unsigned kWarp = 32;

/// The thread that touched a byte last. Intervals are numbered through all launches: each lies between two barriers of
/// one block.
struct Touch {
  std::uint32_t thread = 0, interval = 0;  // interval 0: none
};
struct Shadow {
  Touch writer, reader, other_reader;
  bool atomic = false;  // the writer
};

struct Memory {
  std::uint8_t* begin = nullptr;
  std::size_t size = 0, zone = 0;  // bytes; the zone is on either side
  int device = 0;
  bool freed = false;
  std::vector<Shadow> shadow = {};  // of each byte, from the first access of a kernel on
};

class Emulator;
thread_local Emulator* running = nullptr;  // by the thread of a stream; its fibers stay on it

/// Memory that kernels may touch.
class Memories {
 public:
  Memory& add(Memory memory) { return by_end_[memory.begin + memory.size + memory.zone] = std::move(memory); }
  void remove(const Memory& memory) { by_end_.erase(memory.begin + memory.size + memory.zone); }
  /// Null where nothing begins there, or no more.
  Memory* beginning_at(const std::uint8_t* begin) {
    for (auto& [end, memory] : by_end_)
      if (memory.begin == begin && !memory.freed) return &memory;
    return nullptr;
  }
  /// The allocation that an address, or the zone around it, belongs to; nullptr: none, as the stack of a thread.
  Memory* of(const std::uint8_t* address) {
    const auto at = by_end_.upper_bound(const_cast<std::uint8_t*>(address));
    if (at == by_end_.end() || address + at->second.zone < at->second.begin) return nullptr;
    return &at->second;
  }

 private:
  std::map<std::uint8_t*, Memory> by_end_;  // by the end of the zone behind
};

std::mutex& device() {
  static std::mutex mutex;
  return mutex;
}
Memories& memories() {
  static Memories& all = *new Memories;  // to the program's end: what was freed last is still in it
  return all;
}
std::vector<std::string> findings;
std::set<std::string> kernels_run;
Order order = Order::forward;
std::mt19937 shuffle{1};
std::uint32_t intervals = 0;

std::vector<unsigned> places(unsigned count) {
  std::vector<unsigned> result(count);
  std::iota(result.begin(), result.end(), 0u);
  if (order == Order::reverse) std::ranges::reverse(result);
  if (order == Order::random) std::ranges::shuffle(result, shuffle);
  return result;
}

/// Where the zones in front of shared variables begin, in their order.
const std::vector<const std::uint8_t*>& shared_zones() {
  static const auto all = [] {
    std::vector<const std::uint8_t*> zones(__start_cohive_zones, __stop_cohive_zones);
    std::ranges::sort(zones);
    return zones;
  }();
  return all;
}

/// One launch.
class Emulator {
 public:
  Emulator(const char* kernel, int device, unsigned blocks, unsigned threads, const std::function<void()>& body)
      : kernel_(kernel),
        device_(device),
        blocks_(blocks),
        threads_(threads),
        body_(body),
        first_interval_(intervals + 1) {}

  void run() {
    running = this;
    const auto shared_size = static_cast<std::size_t>(__stop_cohive_shared - __start_cohive_shared);
    if (shared_size > 0) shared_ = &memories().add({__start_cohive_shared, shared_size, kSharedZone, device_});
    for (const unsigned block : places(blocks_)) {
      block_ = block;
      // Another one than that of the block before: a kernel cannot count on anything in it.
      if (shared_) std::memset(__start_cohive_shared, 0xa5, shared_size);
      run_block();
    }
    if (shared_) memories().remove(*shared_);
    running = nullptr;
  }

  void touch(const void* address, std::size_t bytes, bool writes, bool atomic) {
    const auto* at = static_cast<const std::uint8_t*>(address);
    Memory* memory = memories().of(at);
    if (!memory) return;
    const std::string what = std::string(writes ? "writes " : "reads ") + std::to_string(bytes) + " bytes ";
    if (const std::string wrong = misplaced(*memory, at, bytes); !wrong.empty()) return report(what + wrong);
    if (reinterpret_cast<std::uintptr_t>(at) % bytes != 0)
      return report(what + "at an address that is no multiple of it");
    if (memory->shadow.empty()) memory->shadow.resize(memory->size);
    // Shared memory is another one in each block.
    const std::uint32_t since = memory == shared_ ? block_interval_ : first_interval_;
    for (std::size_t i = 0; i < bytes; ++i)
      if (!keep_apart(memory->shadow[static_cast<std::size_t>(at - memory->begin) + i], since, writes, atomic))
        return report(what + "that another thread " + (writes ? "reads or writes" : "writes") +
                      ", with no barrier between them");
  }

  // ---- What threads ask for
  Index thread() const { return {now_}; }
  Index block() const { return {block_}; }
  Index threads() const { return {threads_}; }
  Index blocks() const { return {blocks_}; }

  void wait_for_all() {
    states_[now_].at_barrier = true;
    leave();
  }

  std::uint32_t exchange(std::uint32_t value, unsigned lane) {
    const unsigned warp = now_ / kWarp * kWarp;
    states_[now_].value = value;
    states_[now_].in_exchange = true;
    leave();
    return states_[warp + lane].passed;
  }

 private:
  struct State {
    bool ended = false, at_barrier = false, in_exchange = false;
    std::uint32_t value = 0, passed = 0;
  };
  /// Runs threads one after another, until one of them waits: then another fiber goes on.
  struct Fiber {
    ucontext_t context;
    const std::unique_ptr<std::uint8_t[]> stack = std::make_unique_for_overwrite<std::uint8_t[]>(kStack);
    unsigned thread = 0;
    bool waits = false;  // its thread does
  };

  /// What is wrong with an access to this place; empty: nothing.
  std::string misplaced(const Memory& memory, const std::uint8_t* at, std::size_t bytes) const {
    const auto* const end = memory.begin + memory.size;
    if (memory.freed) return "of a buffer that was freed";
    if (memory.device != device_)
      return "of GPU " + std::to_string(memory.device) + " on GPU " + std::to_string(device_);
    if (at < memory.begin || at + bytes > end) {
      const bool before = at < memory.begin;
      return "outside of a buffer of " + std::to_string(memory.size) + ", " +
             std::to_string(before ? memory.begin - at : at + bytes - end) + (before ? " before it" : " behind it");
    }
    if (&memory != shared_) return {};
    const auto& zones = shared_zones();
    const auto next = std::ranges::upper_bound(zones, at);  // the first that begins behind the address
    const bool in_zone = next != zones.begin() && at < *std::prev(next) + kSharedZone;
    return in_zone || (next != zones.end() && at + bytes > *next) ? "outside of shared variables" : "";
  }

  void run_block() {
    states_.assign(threads_, {});
    used_ = 0;
    interval_ = block_interval_ = ++intervals;
    queue_ = places(threads_);
    next_ = 0;
    while (next_ < queue_.size()) start_fiber();
    while (std::ranges::any_of(states_, [](const State& one) { return !one.ended; })) go_on();
  }

  void start_fiber() {
    if (used_ == fibers_.size()) fibers_.push_back(std::make_unique<Fiber>());
    Fiber& fiber = *fibers_[used_++];
#ifdef COHIVE_FIBERS_OF_ASAN
    __asan_unpoison_memory_region(fiber.stack.get(), kStack);  // its last block left frames behind
#endif
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Emulator::enter, 0);
    resume(fiber);
  }

  static void enter() {
    Emulator& self = *running;
#ifdef COHIVE_FIBERS_OF_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &self.host_stack_, &self.host_stack_size_);
#endif
    while (self.next_ < self.queue_.size()) {
      self.current_->thread = self.now_ = self.queue_[self.next_++];
      self.body_();
      self.states_[self.now_].ended = true;
    }
    self.current_->waits = false;
    self.leave(true);
  }

  void resume(Fiber& fiber) {
    current_ = &fiber;
    now_ = fiber.thread;
    fiber.waits = false;
#ifdef COHIVE_FIBERS_OF_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fiber.stack.get(), kStack);
#endif
    swapcontext(&host_, &fiber.context);
#ifdef COHIVE_FIBERS_OF_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  /// Back to run_block(), until this fiber is resumed.
  void leave(bool for_good = false) {
    Fiber& fiber = *current_;
    const unsigned thread = now_;
    fiber.waits = !for_good;
#ifdef COHIVE_FIBERS_OF_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, host_stack_, host_stack_size_);
#endif
    swapcontext(&fiber.context, &host_);
#ifdef COHIVE_FIBERS_OF_ASAN
    __sanitizer_finish_switch_fiber(fake, &host_stack_, &host_stack_size_);
#endif
    now_ = thread;
  }

  /// All threads that have not ended wait: for their warp, or for the block.
  void go_on() {
    if (exchange_in_warps()) return;
    const auto ended = std::ranges::count_if(states_, &State::ended);
    if (ended > 0)
      report_once("waits at a barrier that " + std::to_string(ended) + " of " + std::to_string(threads_) +
                  " threads of the block never come to");
    interval_ = ++intervals;
    for (State& state : states_) state.at_barrier = false;
    resume_those([](const State&) { return true; });
  }

  bool exchange_in_warps() {
    bool some = false;
    for (unsigned warp = 0; warp < threads_; warp += kWarp) {
      const unsigned end = std::min(warp + kWarp, threads_);
      const auto lanes = std::span(states_).subspan(warp, end - warp);
      if (std::ranges::none_of(lanes, &State::in_exchange)) continue;
      if (!std::ranges::all_of(lanes, &State::in_exchange))
        report_once("exchanges values in a warp of which not all lanes take part");
      for (State& lane : lanes) lane.passed = lane.value, lane.in_exchange = false;
      some = true;
      resume_those(
          [&](const State& state) { return &state >= &lanes.front() && &state <= &lanes.back() && !state.at_barrier; });
    }
    return some;
  }

  template <class Predicate>
  void resume_those(Predicate which) {
    std::vector<Fiber*> waiting;
    for (const unsigned place : places(static_cast<unsigned>(used_)))
      if (fibers_[place]->waits && which(states_[fibers_[place]->thread])) waiting.push_back(fibers_[place].get());
    for (Fiber* fiber : waiting) resume(*fiber);
  }

  /// Whether barriers order this access and those before it. \param since  the first interval in which there are any
  bool keep_apart(Shadow& shadow, std::uint32_t since, bool writes, bool atomic) {
    const std::uint32_t thread = block_ * threads_ + now_ + 1;
    const auto races = [&](const Touch& touch) {
      if (touch.interval < since || touch.thread == thread) return false;
      const bool same_block = (touch.thread - 1) / threads_ == block_;
      return !same_block || touch.interval == interval_;
    };
    bool fine = !races(shadow.writer) || (atomic && shadow.atomic);
    if (writes) {
      fine = fine && (atomic || (!races(shadow.reader) && !races(shadow.other_reader)));
      shadow.writer = {thread, interval_};
      shadow.atomic = atomic;
    } else {
      if (shadow.reader.thread != thread) shadow.other_reader = shadow.reader;
      shadow.reader = {thread, interval_};
    }
    return fine;
  }

  void report(const std::string& what) {
    if (++reported_ > kMostFindings) return;
    findings.push_back(std::string(kernel_) + ": thread " + std::to_string(now_) + " of block " +
                       std::to_string(block_) + " " + what);
  }
  void report_once(const std::string& what) {
    if (std::exchange(barrier_reported_, true)) return;
    now_ = static_cast<unsigned>(std::ranges::find_if(states_, [](const State& one) { return !one.ended; }) -
                                 states_.begin());
    report(what);
  }

  const char* kernel_;
  const int device_;
  const unsigned blocks_, threads_;
  const std::function<void()>& body_;
  const std::uint32_t first_interval_;
  std::uint32_t interval_ = 0, block_interval_ = 0;
  Memory* shared_ = nullptr;
  unsigned block_ = 0, now_ = 0;
  std::size_t reported_ = 0;
  bool barrier_reported_ = false;
  std::vector<State> states_;
  std::vector<std::unique_ptr<Fiber>> fibers_;  // kept from block to block
  std::size_t used_ = 0;                        // of this block
  Fiber* current_ = nullptr;
  std::vector<unsigned> queue_;
  std::size_t next_ = 0;
  ucontext_t host_;
#ifdef COHIVE_FIBERS_OF_ASAN
  const void* host_stack_ = nullptr;
  std::size_t host_stack_size_ = 0;
#endif
};

}  // namespace

void set_order(Order wanted, std::uint32_t seed) {
  const std::lock_guard lock(device());
  order = wanted;
  shuffle.seed(seed);
}

std::vector<std::string> take_findings() {
  const std::lock_guard lock(device());
  return std::exchange(findings, {});
}

std::set<std::string> take_kernels() {
  const std::lock_guard lock(device());
  return std::exchange(kernels_run, {});
}

void* allocate(std::size_t bytes, int of) {
  const std::lock_guard lock(device());
  auto* all = static_cast<std::uint8_t*>(std::aligned_alloc(256, (bytes + 2 * kZone + 255) / 256 * 256));
  std::memset(all, 0xa5, bytes + 2 * kZone);
  return memories().add({all + kZone, bytes, kZone, of}).begin;
}

void note_freeing(const void* memory, int current_device) {
  const std::lock_guard lock(device());
  const Memory* const freed = memories().beginning_at(static_cast<const std::uint8_t*>(memory));
  if (!freed || freed->device == current_device) return;
  findings.push_back("memory of GPU " + std::to_string(freed->device) + " is freed on GPU " +
                     std::to_string(current_device));
}

bool release(void* memory) {
  static std::deque<Memory*> kept;  // freed, and known for a while
  static std::size_t kept_bytes = 0;
  const std::lock_guard lock(device());
  Memory* const freed = memories().beginning_at(static_cast<std::uint8_t*>(memory));
  if (!freed) return false;
  freed->freed = true;
  freed->shadow = {};
#ifdef COHIVE_FIBERS_OF_ASAN
  __asan_poison_memory_region(freed->begin, freed->size);  // for those that are no kernels
#endif
  kept.push_back(freed);
  kept_bytes += freed->size;
  for (; kept_bytes > kKeptFreed; kept.pop_front()) {
    Memory* const oldest = kept.front();
    std::uint8_t* const begin = oldest->begin;
    kept_bytes -= oldest->size;
#ifdef COHIVE_FIBERS_OF_ASAN
    __asan_unpoison_memory_region(begin, oldest->size);
#endif
    memories().remove(*oldest);
    std::free(begin - kZone);
  }
  return true;
}

void run(const char* kernel, int of, unsigned blocks, unsigned threads, const std::function<void()>& body) {
  const std::lock_guard lock(device());
  kernels_run.insert(kernel);
  Emulator(kernel, of, blocks, threads, body).run();
}

Index thread_index() {
  return running->thread();
}
Index block_index() {
  return running->block();
}
Index block_size() {
  return running->threads();
}
Index grid_size() {
  return running->blocks();
}
void barrier() {
  running->wait_for_all();
}
void note_access(const void* address, std::size_t bytes, bool writes) {
  running->touch(address, bytes, writes, false);
}
void note_atomic(const void* address, std::size_t bytes) {
  running->touch(address, bytes, true, true);
}
std::uint32_t exchange(std::uint32_t value, unsigned lane) {
  return running->exchange(value, lane);
}

namespace {
void touch(const void* address, std::size_t bytes, bool writes) {
  if (running) running->touch(address, bytes, writes, false);
}
}  // namespace

}  // namespace cohive::cuda::emulated

// What the compiler calls.
#define COHIVE_TRACED(BYTES, TYPE)                                   \
  extern "C" void __sanitizer_cov_load##BYTES(const TYPE* address) { \
    cohive::cuda::emulated::touch(address, BYTES, false);            \
  }                                                                  \
  extern "C" void __sanitizer_cov_store##BYTES(TYPE* address) {      \
    cohive::cuda::emulated::touch(address, BYTES, true);             \
  }
COHIVE_TRACED(1, std::uint8_t)
COHIVE_TRACED(2, std::uint16_t)
COHIVE_TRACED(4, std::uint32_t)
COHIVE_TRACED(8, std::uint64_t)
COHIVE_TRACED(16, void)
