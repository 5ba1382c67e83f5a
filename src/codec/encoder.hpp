// The encoders of all codecs, as steps that several threads may share.
#pragma once

#include <memory>

#include "cohive/codec/codec.hpp"
#include "steps.hpp"
#include "values.hpp"

namespace cohive::codec {

class Encoder : public Steps {
 public:
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
