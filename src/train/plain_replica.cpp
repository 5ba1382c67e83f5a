#include "cohive/train/plain_replica.hpp"

#include <algorithm>

namespace cohive::train {
namespace {

std::vector<Buffer> zeros(const std::vector<codec::Shape>& shapes) {
  std::vector<Buffer> buffers;
  for (const auto& shape : shapes) {
    averaging::TensorInfo info;
    info.shape = shape;
    buffers.push_back(Buffer::on_host(info.elements()));
    std::ranges::fill(buffers.back().values, 0.0f);
  }
  return buffers;
}

}  // namespace

PlainReplica::PlainReplica(Runtime& runtime, const std::vector<codec::Shape>& shapes, optim::Options optimizer)
    : BufferReplica(runtime, shapes, zeros(shapes), std::move(optimizer)) {}

}  // namespace cohive::train
