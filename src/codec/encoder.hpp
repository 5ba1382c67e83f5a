// An encoding in steps that several threads may share:
//   for each phase: its steps, in any order, any number at a time; then settle(phase), alone.
// The result does not depend on how the steps were shared out.
#pragma once

#include <memory>

#include "cohive/codec/codec.hpp"
#include "values.hpp"

namespace cohive::codec {

class Encoder {
 public:
  /// Values that one step takes, about; whole blocks of every kind.
  static constexpr std::size_t kSegment = std::size_t{1} << 18;

  virtual ~Encoder() = default;
  /// 0 past the last phase.
  virtual std::size_t steps(int phase) const = 0;
  virtual void run(int phase, std::size_t step) = 0;
  virtual void settle(int /*phase*/) {}
  /// The wire's buffer, once all is done.
  Slice take() { return std::move(out_); }

 protected:
  Encoder(Values values, std::size_t bytes) : values_(values), out_(Slice::uninitialised(bytes)) {}

  std::size_t segments() const { return (values_.size() + kSegment - 1) / kSegment; }
  std::size_t segment_size(std::size_t step) const { return std::min(kSegment, values_.size() - step * kSegment); }
  std::uint8_t* out(std::size_t at) { return out_.mutable_data() + at; }

  Values values_;

 private:
  Slice out_;
};

/// Rows matter to meanstd16 only: `row` values share a scale.
std::unique_ptr<Encoder> make_encoder(Codec codec, Values values, std::size_t rows, std::size_t row);

/// All steps on this thread.
Slice run_encoder(Encoder& encoder);

}  // namespace cohive::codec
