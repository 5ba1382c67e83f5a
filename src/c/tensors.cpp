#include "tensors.hpp"

#include "errors.hpp"
#include "train/detail/usable_statistics.hpp"

namespace cohive::c {

cohive_tensor view_of(const codec::Tensor& tensor) {
  const auto bytes = tensor.data.view();
  return {bytes.data(),
          tensor.shape.data(),
          name_of(tensor.dtype).data(),
          nullptr,
          bytes.size(),
          static_cast<std::int32_t>(tensor.shape.size()),
          tensor.requires_grad,
          0};
}

codec::DType dtype_of(const cohive_tensor& tensor) {
  const auto dtype = codec::dtype_from_name(&there(tensor.dtype, "dtype"));
  if (!dtype) refuse(std::string(tensor.dtype) + " is no dtype that tensors of cohive have");
  return *dtype;
}

codec::Shape shape_of(const cohive_tensor& tensor) {
  if (tensor.rank < 0) refuse("a rank must not be negative");
  if (tensor.rank > 0) there(tensor.shape, "shape");
  codec::Shape shape(tensor.shape, tensor.shape + tensor.rank);
  if (!codec::element_count(shape)) refuse("a tensor has more values than 2^40");
  return shape;
}

codec::Codec codec_of(const cohive_tensor& tensor) {
  if (!tensor.codec) return codec::Codec::none;
  const auto codec = codec::codec_from_name(tensor.codec);
  if (!codec || codec::info(*codec).needs_agreement)
    refuse(std::string(tensor.codec) + " is no codec that every peer has");
  return *codec;
}

codec::Compression by_codec_name() {
  std::map<codec::TensorKey, codec::Compression> codecs;
  for (const auto& known : codec::all_codecs())
    if (!known.needs_agreement) codecs.emplace(std::string(known.name), known.codec);
  return codec::Compression::per_tensor(std::move(codecs));
}

namespace {

/// Returns how many bytes the values have; refuses them where they are not there.
std::size_t checked_size(const cohive_tensor& tensor) {
  const std::uint64_t wanted = *codec::element_count(shape_of(tensor)) * codec::size_of(dtype_of(tensor));
  if (tensor.size != wanted) refuse("a tensor's values have another size than its shape and dtype say");
  if (wanted > 0 && !tensor.data) refuse("data must not be null");
  return tensor.size;
}

optim::View statistic_of(const cohive_tensor& tensor) {
  const auto dtype = dtype_of(tensor);
  const std::size_t size = checked_size(tensor), of_a_value = codec::size_of(dtype);
  if (!codec::is_floating(dtype)) refuse("a statistic has floating-point values");
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % of_a_value != 0) refuse("a statistic is not aligned: copy it");
  return {dtype, const_cast<void*>(tensor.data), size / of_a_value};
}

}  // namespace

codec::Tensor copy_of(const cohive_tensor& tensor) {
  codec::Tensor copy{dtype_of(tensor), shape_of(tensor), tensor.requires_grad != 0, {}};
  const std::size_t wanted = checked_size(tensor);
  const auto* bytes = static_cast<const std::uint8_t*>(tensor.data);
  copy.data = Slice::copy_of({bytes, wanted});
  return copy;
}

}  // namespace cohive::c

using namespace cohive::c;
namespace codec = cohive::codec;

std::int32_t cohive_codec_encode(const cohive_tensor* tensor, cohive_bytes* encoded, std::int32_t* used) {
  return guarded([&] {
    const auto copy = copy_of(there(tensor, "tensor"));
    const auto wanted = codec_of(*tensor);
    const auto slice = codec::encode_tensor(wanted, copy).value();
    give(encoded, cohive::as_text(slice.view()));
    if (used) *used = static_cast<std::int32_t>(codec::codec_for(wanted, copy.dtype, copy.shape));
  });
}

std::int32_t cohive_codec_decode(const cohive_tensor* tensor, cohive_bytes* values) {
  return guarded([&] {
    if (there(tensor, "tensor").size > 0 && !tensor->data) refuse("data must not be null");
    const cohive::ByteView buffer(static_cast<const std::uint8_t*>(tensor->data), tensor->size);
    const auto decoded = codec::decode_tensor(codec_of(*tensor), dtype_of(*tensor), shape_of(*tensor),
                                              tensor->requires_grad != 0, buffer);
    give(values, cohive::as_text(decoded.value().data.view()));
  });
}

std::int32_t cohive_statistics_make_usable(const cohive_tensor* tensors, const char* const* names, std::size_t count) {
  return guarded([&] {
    cohive::train::StatisticViews statistics;
    if (count > 0) {
      there(tensors, "tensors");
      there(names, "names");
    }
    for (std::size_t k = 0; k < count; ++k)
      statistics.insert_or_assign(&there(names[k], "a name"), statistic_of(tensors[k]));
    cohive::train::make_usable(statistics);
  });
}
