/// \file
/// Residuals: error feedback for codecs that lose much on purpose. What one round loses of a tensor is sent with the
/// next one.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cohive/codec/codec.hpp"

namespace cohive::codec {

/// Memory of another kind that residuals are kept in, such as that of a device. Errors are thrown.
class ResidualsMemory {
 public:
  virtual ~ResidualsMemory() = default;
  /// Reads what is owed of the stretch that begins at `first`.
  virtual void read(std::size_t first, std::span<float> out) const = 0;
  /// Writes it.
  virtual void write(std::size_t first, std::span<const float> values) = 0;
};

/// What is owed of one tensor, round after round. Memory (4 bytes a value) is taken when something is owed for the
/// first time. Calls for stretches that do not overlap may run at once on several threads.
class Residuals {
 public:
  /// Owes nothing yet.
  /// \param size  values of the tensor
  /// \param kept  the share of what is owed that is still owed one round later, above 0 and at
  ///              most 1: what is too small to be sent for long is old by then. Of the host's
  ///              memory; other memory keeps all.
  explicit Residuals(std::size_t size, float kept = 1);
  Residuals(Residuals&&) noexcept;
  Residuals& operator=(Residuals&&) noexcept;
  ~Residuals();

  /// Writes `values`, those of the stretch that begins at `first`, plus what is still owed of them.
  void correct(std::size_t first, std::span<const float> values, std::span<float> out) const;
  /// Notes that the corrected values were delivered as `encoded`: what that lost is owed from now on. Errors: a buffer
  /// that cannot be decoded; it changes nothing.
  Result<> commit(Codec codec, std::size_t first, std::span<const float> values, ByteView encoded);
  /// Notes that the stretch was delivered as it is.
  void clear(std::size_t first, std::size_t count);
  /// Owes these values, as many as the tensor has, in place of what was owed. No other call goes on.
  void replace(std::span<const float> values);
  /// Returns what is owed: as long as the tensor, or empty when nothing ever was.
  std::vector<float> values() const;
  /// Tells whether nothing ever was.
  bool empty() const noexcept;

  /// Returns what is owed as memory of the host, to be read and written; zeros where nothing ever was. Throws
  /// std::logic_error where it is kept in other memory.
  std::span<float> on_host();

  /// Keeps what is owed in other memory from now on, which has it already. No other call goes on.
  void keep_in(std::shared_ptr<ResidualsMemory> memory);
  /// Returns that memory; null: the host's.
  const std::shared_ptr<ResidualsMemory>& kept_in() const noexcept;
  /// Returns the number of values.
  std::size_t size() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohive::codec
