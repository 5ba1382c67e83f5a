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
  explicit State(std::size_t count) : size(count) {}
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
  void check(std::size_t first, std::size_t count) const {
    if (first > size || count > size - first) throw std::invalid_argument("residuals of a tensor of another size");
  }

  const std::size_t size;
  std::once_flag made;
  std::atomic<float*> memory = nullptr;
};

Residuals::Residuals(std::size_t size) : state_(std::make_unique<State>(size)) {}
Residuals::Residuals(Residuals&&) noexcept = default;
Residuals& Residuals::operator=(Residuals&&) noexcept = default;
Residuals::~Residuals() = default;

void Residuals::correct(std::size_t first, std::span<const float> values, std::span<float> out) const {
  state_->check(first, values.size());
  if (out.size() != values.size()) throw std::invalid_argument("residuals of a stretch of another length");
  const auto owed = state_->all();
  if (owed.empty()) return void(std::ranges::copy(values, out.begin()));
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = values[i] + owed[first + i];
}

Result<> Residuals::commit(Codec codec, std::size_t first, std::span<const float> values, ByteView encoded) {
  std::vector<float> lost(values.size());
  correct(first, values, lost);
  if (auto known = decode_and_accumulate(codec, DType::float32, encoded, -1.0f, lost); !known) return known;
  std::ranges::copy(lost, state_->make().begin() + static_cast<std::ptrdiff_t>(first));
  return ok();
}

void Residuals::clear(std::size_t first, std::size_t count) {
  state_->check(first, count);
  const auto owed = state_->all();
  if (!owed.empty()) std::fill_n(owed.begin() + static_cast<std::ptrdiff_t>(first), count, 0.0f);
}

void Residuals::replace(std::span<const float> values) {
  if (values.size() != state_->size) throw std::invalid_argument("residuals of a tensor of another size");
  std::ranges::copy(values, state_->make().begin());
}

std::span<const float> Residuals::values() const noexcept {
  return state_->all();
}

}  // namespace cohive::codec
