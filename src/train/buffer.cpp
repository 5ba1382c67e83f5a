#include "cohive/train/buffer.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "cohive/train/mapped_pages.hpp"

namespace cohive::train {
namespace {
constexpr std::size_t kLine = 64, kLarge = 2 * MappedPages::kHugePage;
}

Buffer Buffer::on_host(std::size_t size) {
  const std::size_t bytes = size * sizeof(float);
  if (bytes >= kLarge) {
    const auto pages = std::make_shared<MappedPages>(bytes);
    return {pages, {static_cast<float*>(pages->data()), size}};
  }
  void* memory = std::aligned_alloc(kLine, std::max((bytes + kLine - 1) / kLine * kLine, kLine));
  if (!memory) throw std::bad_alloc();
  return {std::shared_ptr<void>(memory, &std::free), {static_cast<float*>(memory), size}};
}

}  // namespace cohive::train
