#include "fragment.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "cohive/core/log.hpp"

namespace cohive::train {

std::string Fragment::name(const std::string& what) const {
  return count == 1 ? what : log::format("{}_{}_of_{}", what, index + 1, count);
}

std::vector<averaging::TensorInfo> Fragment::infos(const std::vector<averaging::TensorInfo>& of_model) const {
  std::vector<averaging::TensorInfo> infos;
  for (const std::size_t tensor : tensors) {
    infos.push_back(of_model[tensor]);
    auto& key = infos.back().key;  // a compression for each tensor goes by the places in the model
    if (count > 1 && !key) key.emplace(std::uint64_t{tensor});
  }
  return infos;
}

std::vector<std::span<float>> Fragment::in_model(std::vector<std::vector<float>>& values) const {
  std::vector<std::span<float>> places(tensors_of_model);
  for (std::size_t i = 0; i < tensors.size(); ++i) places[tensors[i]] = values[i];
  return places;
}

std::vector<Fragment> fragments_of(const std::vector<averaging::TensorInfo>& model, std::size_t count) {
  if (count > model.size())
    throw std::invalid_argument(
        log::format("cohive: outer_optimizer.fragments is {}, and the model has {} parameters: set it to {} at most",
                    count, model.size(), model.size()));
  std::vector<std::size_t> order(model.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    const auto of_a = model[a].elements(), of_b = model[b].elements();
    return of_a > of_b || (of_a == of_b && a < b);
  });
  std::vector<Fragment> fragments(count);
  std::vector<std::pair<std::uint64_t, std::size_t>> sizes(count);  // values, then tensors: none stays without
  for (const std::size_t tensor : order) {
    const auto least = std::ranges::min_element(sizes);
    *least = {least->first + model[tensor].elements(), least->second + 1};
    fragments[static_cast<std::size_t>(least - sizes.begin())].tensors.push_back(tensor);
  }
  for (std::size_t i = 0; i < count; ++i) {
    fragments[i].index = i, fragments[i].count = count;
    fragments[i].tensors_of_model = model.size();
    std::ranges::sort(fragments[i].tensors);
  }
  return fragments;
}

}  // namespace cohive::train
