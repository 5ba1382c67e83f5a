/// \file
/// LowRankProducts: what PowerSGD computes with a matrix on a GPU. cohive has no kernels for it: a library of the
/// embedder's multiplies. LibTorch's products are those of cohive::Optimizer.
#pragma once

#include <cstddef>

#include "cohive/core/result.hpp"

struct CUstream_st;

namespace cohive::cuda {

/// All memory is float32, dense, row-major and on the stream's device. A call queues its work on the stream and
/// returns; results need the precision of float32 (no TF32), as all members of a group expand the same factors. Threads
/// of a pool call it, one for each stream at a time. Errors: what keeps work from being queued.
class LowRankProducts {
 public:
  virtual ~LowRankProducts() = default;

  /// A matrix of `rows` x `columns`, the sum of two. It is averaged by factors of `rank`: P of rows x rank, and Q.
  struct Matrix {
    const float* values = nullptr;
    const float* owed = nullptr;  ///< null: nothing is owed
    std::size_t rows = 0;         ///< of the matrix and of P
    std::size_t columns = 0;      ///< of the matrix
    std::size_t rank = 0;         ///< columns of P
  };
  /// p = matrix * q^T  \param q  rank x columns
  virtual Result<> project(CUstream_st* stream, const Matrix& matrix, const float* q, float* p) = 0;
  /// Makes the columns of p orthonormal, one after another: each is divided by its norm, or by 1e-8 where that is less,
  /// and then taken from all columns behind it (modified Gram-Schmidt).
  virtual Result<> orthogonalise(CUstream_st* stream, float* p, std::size_t rows, std::size_t rank) = 0;
  /// q = matrix^T * p  \param q  columns x rank
  virtual Result<> gather(CUstream_st* stream, const Matrix& matrix, const float* p, float* q) = 0;
  /// product = p * q. Where `owed` is given, first owed += values, and at last owed -= product: `matrix.values` and
  /// `product` may be the same memory. After an error `owed` is as it was, to rounding.
  /// \param q  rank x columns  \param owed  the memory of matrix.owed, or null
  virtual Result<> expand(CUstream_st* stream, const Matrix& matrix, const float* p, const float* q, float* owed,
                          float* product) = 0;
};

}  // namespace cohive::cuda
