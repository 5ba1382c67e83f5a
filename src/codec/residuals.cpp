#include "cohive/codec/residuals.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#include "cohive/codec/decoder.hpp"

namespace cohive::codec {

/// The memory begins as zeros whose pages the system provides as they are written.
struct Residuals::State {
  State(std::size_t count, float share) : size(count), kept(share) {}
  ~State() { std::free(memory.load()); }
  std::span<float> all() const {
    float* values = memory.load(std::memory_order_acquire);
    return {values, values ? size : 0};
  }
  std::span<float> make() {
    std::call_once(made, [this] {
      auto* values = static_cast<float*>(std::calloc(std::max<std::size_t>(size, 1), sizeof(float)));
      if (!values) throw std::bad_alloc();
      memory.store(values, std::memory_order_release);
    });
    return all();
  }
  void write(std::size_t first, std::span<const float> values) {
    if (elsewhere) return elsewhere->write(first, values);
    std::ranges::copy(values, make().begin() + static_cast<std::ptrdiff_t>(first));
  }
  void check(std::size_t first, std::size_t count) const {
    if (first > size || count > size - first) throw std::invalid_argument("residuals of a tensor of another size");
  }

  const std::size_t size;
  const float kept;
  std::shared_ptr<ResidualsMemory> elsewhere;
  std::once_flag made;
  std::atomic<float*> memory = nullptr;
};

Residuals::Residuals(std::size_t size, float kept) : state_(std::make_unique<State>(size, kept)) {}
Residuals::Residuals(Residuals&&) noexcept = default;
Residuals& Residuals::operator=(Residuals&&) noexcept = default;
Residuals::~Residuals() = default;

void Residuals::correct(std::size_t first, std::span<const float> values, std::span<float> out) const {
  state_->check(first, values.size());
  if (out.size() != values.size()) throw std::invalid_argument("residuals of a stretch of another length");
  if (empty()) return void(std::ranges::copy(values, out.begin()));
  std::vector<float> copy;
  std::span<const float> owed = state_->all();
  if (state_->elsewhere) {
    copy.resize(values.size());
    state_->elsewhere->read(first, copy);
    owed = copy;
  } else {
    owed = owed.subspan(first, values.size());
  }
  const float kept = state_->elsewhere ? 1 : state_->kept;
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = values[i] + kept * owed[i];
}

Result<> Residuals::commit(Codec codec, std::size_t first, std::span<const float> values, ByteView encoded) {
  std::vector<float> lost(values.size());
  correct(first, values, lost);
  if (auto known = decode_and_accumulate(codec, DType::float32, encoded, -1.0f, lost); !known) return known;
  state_->write(first, lost);
  return ok();
}

void Residuals::clear(std::size_t first, std::size_t count) {
  state_->check(first, count);
  if (state_->elsewhere) return state_->elsewhere->write(first, std::vector<float>(count));
  const auto owed = state_->all();
  if (!owed.empty()) std::fill_n(owed.begin() + static_cast<std::ptrdiff_t>(first), count, 0.0f);
}

void Residuals::replace(std::span<const float> values) {
  if (values.size() != state_->size) throw std::invalid_argument("residuals of a tensor of another size");
  state_->write(0, values);
}

std::vector<float> Residuals::values() const {
  if (!state_->elsewhere) return {state_->all().begin(), state_->all().end()};
  std::vector<float> owed(state_->size);
  state_->elsewhere->read(0, owed);
  return owed;
}

std::span<float> Residuals::on_host() {
  if (state_->elsewhere) throw std::logic_error("residuals that are kept on a device");
  return state_->make();
}

bool Residuals::empty() const noexcept {
  return !state_->elsewhere && state_->all().empty();
}

void Residuals::keep_in(std::shared_ptr<ResidualsMemory> memory) {
  state_->elsewhere = std::move(memory);
  std::free(state_->memory.exchange(nullptr));
}

const std::shared_ptr<ResidualsMemory>& Residuals::kept_in() const noexcept {
  return state_->elsewhere;
}

std::size_t Residuals::size() const noexcept {
  return state_->size;
}

}  // namespace cohive::codec
