/// \file
/// TensorParts: how a round reads and writes the tensors of one member, wherever they live. An all-reduce cuts tensors
/// into stretches and asks for three operations on a stretch: encode it for its reducer, contribute it to a sum that
/// this peer reduces, and apply what came of it. HostParts (host_parts.hpp) is the implementation for host memory; a
/// device implements the same interface and takes its time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cohive/codec/compression.hpp"
#include "cohive/codec/residuals.hpp"
#include "cohive/core/bytes.hpp"
#include "cohive/core/result.hpp"
#include "cohive/core/task.hpp"

namespace cohive::averaging {

/// What the members of a group agree on about one tensor.
struct TensorInfo {
  codec::Shape shape;                           ///< named in the schema, too
  codec::DType dtype = codec::DType::float32;   ///< named in the schema, and for codecs; values travel as float32 says
  bool requires_grad = false;                   ///< the same
  codec::Role role = codec::Role::unspecified;  ///< what compression strategies look at
  std::optional<codec::TensorKey> key = std::nullopt;  ///< the same; unset: the place in the list of tensors

  /// Returns the product of the shape. Throws std::invalid_argument for more than 2^40 values.
  std::size_t elements() const;
};

/// Returns the 20 bytes by which peers see that they average the same tensors (docs/wire/hivemind.md, section 6.3).
std::string schema_hash(std::span<const TensorInfo> tensors);

/// The memory of one tensor, of the host or of a device. It belongs to the caller and must stay put while a TensorParts
/// uses it.
struct TensorSpan {
  /// Reads and writes in one place.
  TensorSpan(std::span<float> values) : read(values), write(values) {}
  /// Reads `from` and writes `to`; both have one length and do not overlap.
  TensorSpan(std::span<float> from, std::span<float> to) : read(from), write(to) {}
  std::span<float> read;   ///< this member's values; changed by a factor only, unless it is `write` as well
  std::span<float> write;  ///< results
};

/// Consecutive values of one tensor, in row-major order.
struct Stretch {
  std::size_t tensor = 0;  ///< place in the list of tensors
  std::size_t offset = 0;  ///< of the first value in the tensor
  std::size_t length = 0;  ///< number of values
  friend bool operator==(const Stretch&, const Stretch&) = default;
};

/// What a round says about this member to its tensors; the same for all stretches.
struct Terms {
  double weight = 1;  ///< of this member; 0: its values do not count, and nothing that it sends was delivered
  double alpha = 1;   ///< how far values move: 1 is to the average
};

/// An encoded stretch. The bytes stay as they are until the stretch is applied or the round ends.
struct EncodedStretch {
  ByteView bytes;                               ///< as they travel
  std::shared_ptr<const void> owner = nullptr;  ///< keeps the bytes; null when they are the tensor's own memory
};

/// Values as they came over the network: the buffer is a view into the record.
struct EncodedPart {
  codec::Codec codec = codec::Codec::none;     ///< of `buffer`
  codec::DType dtype = codec::DType::float32;  ///< that the sender names for the values
  Slice record;                                ///< keeps the memory of `buffer`
  ByteView buffer;                             ///< the encoded values
};

/// What came of a stretch.
struct Answer {
  /// How the answer is to be read.
  enum class Form {
    difference,  ///< average - what this member sent, as its codec had it
    average      ///< the average itself
  };
  Form form = Form::difference;             ///< of `part`
  std::shared_ptr<const EncodedPart> part;  ///< the answer as its reducer has encoded it
  /// What this member had sent, where its codec feeds errors back: what it lost is owed from now on. Codec::none: the
  /// stretch was reduced here, without any loss.
  struct Sent {
    codec::Codec codec = codec::Codec::none;  ///< that `encoded` is in
    EncodedStretch encoded;                   ///< the bytes that were sent
  };
  std::optional<Sent> sent;  ///< unset: the codec feeds nothing back
};

/// A stretch whose values in `write` are final.
struct StretchResult {
  Stretch stretch;        ///< which values
  bool averaged = false;  ///< false: no average came, and the stretch holds this member's own values (differences: 0)
};

/// How a contribution is added: the first replaces what the sum holds, with the last the sum becomes an average.
struct Adding {
  bool first = false;  ///< the sum holds nothing yet
  double divisor = 0;  ///< of the last: all weights together; else 0
};

/// Writes the values [first, first + out.size()) of a stretch, as often as asked. False: they are no longer there, the
/// round is over.
using ReadValues = std::function<bool(std::size_t first, std::span<float> out)>;

/// The values of one sender for the sum of a part. The sum is the mean (add) or another aggregate (open); one of the
/// two is called, on any thread, when the values are needed.
class Contribution {
 public:
  virtual ~Contribution() = default;
  /// Adds weight * values to the sum, and divides it with the last. False when the average is not finite. On an error
  /// nothing is added: Errc::not_finite.
  virtual Result<bool> add(std::span<float> sum, Adding how) = 0;
  /// Checks the values and makes them readable. Errors: Errc::not_finite.
  virtual Result<ReadValues> open() = 0;
};

/// The contribution of this member to a part that it reduces itself.
class OwnContribution : public Contribution {
 public:
  /// True when add() has applied the average to the stretch in the same pass: it need not be applied again.
  virtual bool applied() const noexcept = 0;
  /// Ends all use of the tensor; waits for a computation in progress. Later calls of add and open fail.
  virtual void revoke() noexcept = 0;
};

/// How a tensor is seen as a matrix that is averaged by low-rank factors.
struct FactorForm {
  std::size_t rows = 0;     ///< of the matrix, in row-major order
  std::size_t columns = 0;  ///< of the matrix
  std::size_t rank = 0;     ///< columns of the factors
};

/// A tensor that is averaged by low-rank factors (PowerSGD) where its memory is. A is the matrix of this member's
/// values and what is owed of them. Loop thread; one call after another, in the order in which they stand here. Spans
/// are the host's, and are not used after the task was dropped. Errors: those of the device.
class FactoredTensor {
 public:
  virtual ~FactoredTensor() = default;
  /// p = A Q. A member without weight leaves it out. \param q  as rank rows  \param p  rows x rank
  virtual Task<Result<>> project(std::span<const float> q, std::span<float> p) = 0;
  /// P is the average of all p, whose columns are made orthonormal as hivemind makes them.
  virtual Task<Result<>> take_average(std::span<const float> p) = 0;
  /// q = A^T P. A member without weight leaves it out. \param q  columns x rank
  virtual Task<Result<>> gather(std::span<float> q) = 0;
  /// P Q becomes the tensor's result. \param q  the average of all q, as rank rows
  /// \param counts  of a member with weight: what A has more is owed from now on
  virtual Task<Result<>> apply(std::span<const float> q, bool counts) = 0;
};

class AnswerResiduals;

/// The tensors of one member, for one round at a time. Called on the loop; operations on different stretches run at
/// once, those on one stretch one after another. The tensors' memory is touched only while an operation (or a
/// contribution) is in progress: dropping its task waits for the computation that is running, which is at most that of
/// one part.
class TensorParts {
 public:
  virtual ~TensorParts() = default;

  /// Describes the tensors; fixed.
  virtual const std::vector<TensorInfo>& infos() const noexcept = 0;
  /// Tells whether what a lossy codec loses is kept for the next round. Codecs with error feedback are used then only.
  virtual bool keeps_residuals() const noexcept { return false; }
  /// Returns where this member, as a reducer, notes what its averages lose: averages of parts in sparse2 come back in
  /// sparse2 then. Null: they come back in the ordinary codec.
  virtual std::shared_ptr<AnswerResiduals> answer_residuals() const { return nullptr; }
  /// Returns how many times the density of an agreed codec this round has; all values are sent at most.
  virtual double density_factor() const noexcept { return 1; }

  /// Encodes a stretch for its reducer. Errors: Errc::not_finite for a value that is NaN or infinite.
  virtual Task<Result<EncodedStretch>> encode(Stretch stretch, codec::CodecSpec codec) = 0;
  /// Makes the values of a stretch that is reduced here ready to be added.
  /// \param codec  what the stretch would travel in: with error feedback, what is owed of it is added, too
  virtual Task<Result<std::shared_ptr<OwnContribution>>> contribute(Stretch stretch, codec::CodecSpec codec,
                                                                    Terms terms) = 0;
  /// Applies what came of a stretch. Errors: Errc::malformed and Errc::not_finite for an answer that cannot be used;
  /// then the stretch counts as one without a result.
  virtual Task<Result<>> apply(Stretch stretch, Answer answer, Terms terms) = 0;
  /// Returns what averages a tensor by low-rank factors in memory of this kind; null: whoever asks reads the values and
  /// computes in host memory. \param owed  of its values, which the result changes; it outlives that
  virtual std::unique_ptr<FactoredTensor> factored(std::size_t tensor, FactorForm form, codec::Residuals& owed);
  /// Gives stretches without a result their final values. A round that succeeds calls it at its end; after another one,
  /// and without any, the owner of the tensors may. Calling it again changes nothing.
  virtual Task<void> finish() = 0;
};

/// Reads the values of a stretch, as this member has them: for schemes that compute with them. Errors: not_finite.
Task<Result<std::vector<float>>> read_values(TensorParts& tensors, Stretch stretch);
/// Applies an average that a scheme has computed for a stretch. Errors: as TensorParts::apply.
Task<Result<>> apply_average(TensorParts& tensors, Stretch stretch, std::vector<float> average, Terms terms);

}  // namespace cohive::averaging
