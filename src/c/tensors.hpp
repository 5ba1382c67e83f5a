// Tensors as callers see them.
#pragma once

#include "cohive/codec/codec.hpp"
#include "cohive/codec/compression.hpp"
#include "cohive/cohive.h"

namespace cohive::c {

/// Points into the tensor.
cohive_tensor view_of(const codec::Tensor& tensor);
/// What a caller says about a tensor. Each refuses what is none.
codec::DType dtype_of(const cohive_tensor& tensor);
codec::Shape shape_of(const cohive_tensor& tensor);
codec::Codec codec_of(const cohive_tensor& tensor);
/// Which codec a tensor gets is its key.
codec::Compression by_codec_name();
/// Copies the values, which must be as many as the shape says.
codec::Tensor copy_of(const cohive_tensor& tensor);

}  // namespace cohive::c
