#include "cohive/averaging/tensor_parts.hpp"

#include <stdexcept>

#include "averaging/detail/part_math.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/msgpack.hpp"
#include "cohive/dht/dht_id.hpp"

namespace cohive::averaging {

std::size_t TensorInfo::elements() const {
  if (const auto count = codec::element_count(shape)) return static_cast<std::size_t>(*count);
  throw std::invalid_argument("a tensor of more than 2^40 values");
}

std::string schema_hash(std::span<const TensorInfo> tensors) {
  using namespace msgpack;
  Array list;
  for (const auto& tensor : tensors) {
    std::string size = "torch.Size([";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) size += (i ? ", " : "") + std::to_string(tensor.shape[i]);
    list.items.push_back(Map{{{"size", size + "])"},
                              {"dtype", "torch." + std::string(codec::name_of(tensor.dtype))},
                              {"layout", "torch.strided"},
                              {"device", "cpu"},
                              {"requires_grad", tensor.requires_grad ? "True" : "False"},
                              {"pin_memory", "False"},
                              {"compression", "0"}}});
  }
  return dht::DhtId::of(Value(std::move(list))).binary();
}

std::unique_ptr<FactoredTensor> TensorParts::factored(std::size_t, FactorForm, codec::Residuals&) {
  return nullptr;
}

Task<Result<std::vector<float>>> read_values(TensorParts& tensors, Stretch stretch) {
  const Terms terms;
  auto contribution = co_await tensors.contribute(stretch, codec::Codec::none, terms);
  if (!contribution) co_return contribution.error();
  const auto read = (*contribution)->open();
  if (!read) co_return read.error();
  std::vector<float> values(stretch.length);
  if (!(*read)(0, values)) co_return Error(Errc::round_cancelled);
  co_return values;
}

Task<Result<>> apply_average(TensorParts& tensors, Stretch stretch, std::vector<float> average, Terms terms) {
  auto part = std::make_shared<EncodedPart>();
  part->record = Slice::copy_of(raw_bytes(average));
  part->buffer = part->record.view();
  Answer answer{Answer::Form::average, std::move(part), std::nullopt};
  co_return co_await tensors.apply(stretch, std::move(answer), terms);
}

}  // namespace cohive::averaging
