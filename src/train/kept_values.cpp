#include "kept_values.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/log.hpp"
#include "train/detail/loaded_state.hpp"

namespace cohive::train {
KeptValues::KeptValues(const std::vector<std::unique_ptr<Scheduled>>& exchanges) {
  for (const auto& scheduled : exchanges)
    for (auto& one : scheduled->exchange().kept()) {
      one.name = std::string(kExchangePrefix) + scheduled->exchange().name() + "." + one.name;
      if (one.values.size() != codec::element_count(one.shape))
        throw std::invalid_argument("cohive: " + log::quoted(one.name) + " has not as many values as its shape says");
      kept_.push_back(std::move(one));
    }
}

std::uint64_t KeptValues::elements() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& one : kept_) sum += one.values.size();
  return sum;
}

Task<std::vector<codec::Tensor>> KeptValues::copies(Runtime& runtime) const {
  co_return co_await runtime.offload([kept = kept_] {
    std::vector<codec::Tensor> copies;
    for (const auto& one : kept) {
      const ByteView bytes(reinterpret_cast<const std::uint8_t*>(one.values.data()), one.values.size_bytes());
      copies.push_back({codec::DType::float32, one.shape, false, Slice::copy_of(bytes)});
    }
    return copies;
  });
}

Task<void> KeptValues::append(Runtime& runtime, averaging::SharedState& state) const {
  if (kept_.empty()) co_return;
  auto tensors = co_await copies(runtime);
  const bool named = state.names.size() == state.tensors.size();
  const bool described = !state.infos.empty();
  state.exact_from = state.tensors.size();
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (named) state.names.push_back(kept_[i].name);
    if (described) state.infos.push_back({kept_[i].name, kept_[i].shape, codec::DType::float32});
    state.tensors.push_back(std::move(tensors[i]));
  }
}

bool KeptValues::fit(std::span<const codec::Tensor> tensors) const {
  return std::ranges::equal(tensors, kept_, [](const codec::Tensor& tensor, const Exchange::Kept& one) {
    return tensor.dtype == codec::DType::float32 && tensor.shape == one.shape &&
           tensor.data.size() == one.values.size_bytes();
  });
}

Task<Result<std::vector<codec::Tensor>>> KeptValues::split(Runtime& runtime, averaging::DownloadedState& state) const {
  const auto bad = [&state](const char* what) { return Error(averaging::Errc::bad_state, state.donor, what); };
  if (state.tensors.size() < kept_.size()) co_return bad("another number of tensors");
  const auto first = state.tensors.end() - static_cast<std::ptrdiff_t>(kept_.size());
  if (!fit({first, state.tensors.end()})) co_return bad("it lacks what the exchanges of this run keep");
  std::vector<codec::Tensor> tensors(std::make_move_iterator(first), std::make_move_iterator(state.tensors.end()));
  state.tensors.erase(first, state.tensors.end());
  if (tensors.empty()) co_return tensors;
  const auto shared = std::make_shared<std::vector<codec::Tensor>>(std::move(tensors));
  const bool finite = co_await runtime.offload([shared] { return std::ranges::all_of(*shared, is_finite); });
  if (!finite) co_return bad("values that are not finite");
  co_return std::move(*shared);
}

std::vector<codec::Tensor> KeptValues::take_from(checkpoint::TensorFile& file) const {
  std::vector<codec::Tensor> found(kept_.size());
  std::size_t known = 0;
  std::erase_if(file.tensors, [&](checkpoint::NamedTensor& one) {
    if (!one.name.starts_with(kExchangePrefix)) return false;
    const auto mine = std::ranges::find(kept_, one.name, &Exchange::Kept::name);
    if (mine != kept_.end()) found[static_cast<std::size_t>(mine - kept_.begin())] = std::move(one.tensor), ++known;
    return true;
  });
  return known == kept_.size() && fit(found) ? found : std::vector<codec::Tensor>();
}

Task<void> KeptValues::write(Runtime& runtime, std::vector<codec::Tensor> tensors) const {
  if (tensors.empty()) co_return;
  const auto shared = std::make_shared<std::vector<codec::Tensor>>(std::move(tensors));
  co_await runtime.offload([kept = kept_, shared] {
    for (std::size_t i = 0; i < kept.size(); ++i)
      std::memcpy(kept[i].values.data(), (*shared)[i].data.data(), kept[i].values.size_bytes());
  });
}

}  // namespace cohive::train
