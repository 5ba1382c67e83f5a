#include "cohive/averaging/live_tensors.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "core/detail/assertion.hpp"

namespace cohive::averaging {
namespace {
constexpr std::size_t kCopiedAtOnce = 32;  // chunks: about a millisecond, as other work uses the pool too
constexpr int kCopiers = 8;
}  // namespace

/// Room for all chunks of a state, of which those have memory that are written.
class LiveTensors::Kept {
 public:
  explicit Kept(std::size_t chunks) : size_(chunks * kChunk) {
    memory_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Kept() { ::munmap(memory_, size_); }
  Kept(const Kept&) = delete;

  std::uint8_t* at(std::size_t chunk) const { return static_cast<std::uint8_t*>(memory_) + chunk * kChunk; }
  void free(std::size_t first, std::size_t count) { (void)::madvise(at(first), count * kChunk, MADV_DONTNEED); }

 private:
  const std::size_t size_;
  void* memory_ = nullptr;
};

LiveTensors::LiveTensors(std::vector<Source> sources, std::function<bool()> unchanged)
    : sources_(std::move(sources)), unchanged_(std::move(unchanged)) {
  std::uint32_t chunks = 0;
  for (const Source& source : sources_) {
    sizes_.push_back(source.size);
    first_chunks_.push_back(chunks);
    chunks += static_cast<std::uint32_t>((source.size + kChunk - 1) / kChunk);
  }
  first_chunks_.push_back(chunks);
}

LiveTensors::~LiveTensors() {
  COHIVE_ASSERT(readers_.empty());
}

bool LiveTensors::check() {
  const std::shared_lock lock(mutex_);
  if (unchanged_ && !unchanged_()) spoil();
  return !spoiled_;
}

bool LiveTensors::is_live() const {
  const std::shared_lock lock(mutex_);
  return live_;
}

bool LiveTensors::in_use() const {
  const std::shared_lock lock(mutex_);
  return !readers_.empty();
}

std::optional<TimePoint> LiveTensors::settled_at() const {
  const std::shared_lock lock(mutex_);
  return settled_at_;
}

std::uint64_t LiveTensors::kept_bytes() const {
  const std::shared_lock lock(mutex_);
  return kept_bytes_;
}

std::uint64_t LiveTensors::copied_bytes() const {
  const std::shared_lock lock(mutex_);
  return copied_bytes_;
}

// ---- When the model changes

Task<void> LiveTensors::settle(Runtime& runtime, std::shared_ptr<LiveTensors> tensors) {
  const auto chunks = std::make_shared<const std::vector<std::uint32_t>>(tensors->needed_chunks(runtime.now()));
  if (chunks->empty()) {
    tensors->drop();
    co_return;
  }
  std::shared_ptr<Kept> kept;
  try {
    kept = std::make_shared<Kept>(tensors->first_chunks_.back());
  } catch (const std::bad_alloc&) {
    log::warn("averaging", "no memory to keep a state for {} bytes that newcomers have not had: they ask again",
              chunks->size() * kChunk);
    tensors->drop();
    co_return;
  }
  std::size_t next = 0;
  std::vector<Task<void>> copiers;
  for (int i = 0; i < kCopiers; ++i) copiers.push_back(copy_chunks(runtime, tensors, kept, chunks, next));
  co_await when_all(runtime, std::move(copiers));
  tensors->take_over(std::move(kept), *chunks, runtime.now());
}

/// One of several that copy at once, for the pool to have work on all its threads. \param next  of the chunks, for all
Task<void> LiveTensors::copy_chunks(Runtime& runtime, std::shared_ptr<LiveTensors> tensors, std::shared_ptr<Kept> kept,
                                    std::shared_ptr<const std::vector<std::uint32_t>> chunks, std::size_t& next) {
  while (next < chunks->size()) {
    const std::size_t first = next, end = next = std::min(chunks->size(), first + kCopiedAtOnce);
    co_await runtime.offload([tensors, kept, chunks, first, end] {
      for (std::size_t i = first; i < end; ++i) tensors->copy_chunk(*kept, (*chunks)[i]);
      return true;
    });
  }
}

std::vector<std::uint32_t> LiveTensors::needed_chunks(TimePoint now) {
  const std::unique_lock lock(mutex_);
  std::vector<std::uint32_t> chunks;
  if (!live_) return chunks;
  for (StateReader* const reader : readers_)
    if (now < reader->keep_from_) reader->done_.assign(reader->done_.size(), true);
  for (std::uint32_t chunk = 0; chunk < first_chunks_.back(); ++chunk)
    if (is_needed(chunk)) chunks.push_back(chunk);
  return chunks;
}

bool LiveTensors::is_needed(std::uint32_t chunk) const {
  return std::ranges::any_of(readers_, [chunk](const StateReader* reader) { return !reader->done_[chunk]; });
}

void LiveTensors::copy_chunk(Kept& kept, std::uint32_t chunk) const {
  const auto after = std::upper_bound(first_chunks_.begin(), first_chunks_.end(), chunk);
  const auto tensor = static_cast<std::size_t>(after - first_chunks_.begin()) - 1;
  const std::size_t offset = (chunk - first_chunks_[tensor]) * kChunk;
  const std::shared_lock lock(mutex_);
  if (live_) copy_out(kept.at(chunk), tensor, offset, std::min(kChunk, sizes_[tensor] - offset));
}

void LiveTensors::take_over(std::shared_ptr<Kept> kept, const std::vector<std::uint32_t>& chunks, TimePoint now) {
  std::vector<Source> released;  // frees outside the lock, as the next one
  std::function<bool()> check;
  const std::unique_lock lock(mutex_);
  if (!live_) return;
  live_ = false;
  released.swap(sources_);
  check.swap(unchanged_);
  settled_at_ = now;
  kept_ = std::move(kept);
  is_kept_.assign(first_chunks_.back(), false);
  for (const std::uint32_t chunk : chunks) is_kept_[chunk] = true;
  kept_bytes_ = copied_bytes_ = chunks.size() * kChunk;
  free_unneeded(0, first_chunks_.back());  // what was read meanwhile
}

void LiveTensors::drop() {
  std::vector<Source> released;
  std::function<bool()> check;
  std::shared_ptr<Kept> kept;
  const std::unique_lock lock(mutex_);
  live_ = false;
  released.swap(sources_);
  check.swap(unchanged_);
  kept.swap(kept_);
  is_kept_.assign(first_chunks_.back(), false);
  kept_bytes_ = 0;
}

// ---- Reading

/// Within one chunk, or while the memory is the model's.
void LiveTensors::copy_out(std::uint8_t* to, std::size_t tensor, std::size_t offset, std::size_t size) const {
  const Source& source = sources_[tensor];
  if (source.period == 0) {
    std::memcpy(to, source.data + offset, size);
    return;
  }
  for (std::size_t i = 0; i < size; ++i) to[i] = source.data[(offset + i) % source.period];
}

void LiveTensors::free_unneeded(std::uint32_t first, std::uint32_t end) {
  for (std::uint32_t chunk = first; chunk < end; ++chunk) {
    if (!is_kept_[chunk] || is_needed(chunk)) continue;
    is_kept_[chunk] = false;
    kept_bytes_ -= kChunk;
    kept_->free(chunk, 1);
  }
  if (kept_bytes_ == 0) kept_.reset();
}

StateReader::StateReader(std::shared_ptr<LiveTensors> tensors)
    : tensors_(std::move(tensors)), done_(tensors_->first_chunks_.back(), false) {
  const std::unique_lock lock(tensors_->mutex_);
  tensors_->readers_.push_back(this);
}

StateReader::~StateReader() {
  std::shared_ptr<LiveTensors::Kept> kept;  // frees outside the lock
  const std::unique_lock lock(tensors_->mutex_);
  std::erase(tensors_->readers_, this);
  if (!tensors_->kept_) return;
  if (!tensors_->readers_.empty()) {
    tensors_->free_unneeded(0, tensors_->first_chunks_.back());
    return;
  }
  kept.swap(tensors_->kept_);
  tensors_->kept_bytes_ = 0;
  tensors_->is_kept_.assign(tensors_->is_kept_.size(), false);
}

std::optional<Slice> StateReader::read(std::size_t tensor, std::size_t offset, std::size_t size) const {
  LiveTensors& from = *tensors_;
  COHIVE_ASSERT(tensor < from.sizes_.size() && offset + size <= from.sizes_[tensor]);
  Slice bytes = Slice::uninitialised(size);
  const std::shared_lock lock(from.mutex_);
  if (from.live_) {
    from.copy_out(bytes.mutable_data(), tensor, offset, size);
    return bytes;
  }
  for (std::size_t done = 0; done < size;) {
    const std::size_t at = offset + done, within = at % LiveTensors::kChunk;
    const std::size_t part = std::min(size - done, LiveTensors::kChunk - within);
    const std::size_t chunk = from.first_chunks_[tensor] + at / LiveTensors::kChunk;
    if (!from.kept_ || !from.is_kept_[chunk] || done_[chunk]) return std::nullopt;
    std::memcpy(bytes.mutable_data() + done, from.kept_->at(chunk) + within, part);
    done += part;
  }
  return bytes;
}

void StateReader::keep_from(TimePoint at) {
  const std::unique_lock lock(tensors_->mutex_);
  keep_from_ = at;
}

void StateReader::done(std::size_t tensor, std::size_t offset, std::size_t size) {
  LiveTensors& from = *tensors_;
  const std::unique_lock lock(from.mutex_);
  const std::size_t end = offset + size;
  const auto first = static_cast<std::uint32_t>(from.first_chunks_[tensor] + offset / LiveTensors::kChunk);
  const auto last =
      static_cast<std::uint32_t>(end == from.sizes_[tensor] ? from.first_chunks_[tensor + 1]
                                                            : from.first_chunks_[tensor] + end / LiveTensors::kChunk);
  for (std::uint32_t chunk = first; chunk < last; ++chunk) done_[chunk] = true;
  keep_from_ = TimePoint::min();
  if (from.kept_) from.free_unneeded(first, last);
}

}  // namespace cohive::averaging
