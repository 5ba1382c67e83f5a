// Products of a matrix with its low-rank factors, for PowerSGD. A block of rows of the matrix and its factor P are in
// row-major order; Q is rank x columns, the transpose of what travels, so that all inner loops run along a row. Pure
// functions that run on any thread.
#pragma once

#include <cstddef>
#include <span>

#include "cohive/codec/tensor.hpp"

namespace cohive::averaging {

struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 0;
};
/// The matrix that a tensor of two or more dimensions is seen as: neighbouring dimensions are merged, those with the
/// smallest product first, until two are left. Source: docs/wire/hivemind.md, section 7.3.
MatrixShape matrix_of(const codec::Shape& shape);

/// The factor Q of a matrix: rank rows, each as long as a row of the matrix.
template <class T>
struct FactorQ {
  std::span<T> values;
  std::size_t rank = 0;
  std::size_t columns = 0;
};

/// p = block * q^T. The block has as many rows as p.
void project(std::span<const float> block, FactorQ<const float> q, std::span<float> p);
/// q += p^T * block
void gather(std::span<const float> block, std::span<const float> p, FactorQ<float> q);
/// block = p * q
void expand(std::span<const float> p, FactorQ<const float> q, std::span<float> block);

/// a += b; a -= b
void add_to(std::span<float> a, std::span<const float> b);
void subtract_from(std::span<float> a, std::span<const float> b);

/// out = the transpose of `in`, which has these many rows and columns.
void transpose(std::span<const float> in, std::size_t rows, std::size_t columns, std::span<float> out);

/// Makes the rows of a rank x length matrix orthonormal, one after another, as hivemind's orthogonalize_ makes columns
/// (modified Gram-Schmidt). A row whose norm is below 1e-8 is divided by that instead.
void orthogonalise_rows(std::span<float> matrix, std::size_t rank, std::size_t length);

}  // namespace cohive::averaging
