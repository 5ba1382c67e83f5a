#include "secure_channel.hpp"

namespace cohive::transport {
namespace {

constexpr std::size_t kOutputBlock = 2 + 65535;      // a full record of Noise with its length
constexpr std::size_t kSmallBlock = 2 * 1024;        // for connections that say little
constexpr std::size_t kMaxFlush = 2 * kOutputBlock;  // one write: what a slow link must carry within the write time-out
constexpr std::size_t kMaxSpareOutputs = 8;

/// Full-size output blocks that are free: malloc would return their pages to the system again and again.
thread_local std::vector<Slice> spare_outputs;

Slice output_block(std::size_t size) {
  if (size < kSmallBlock / 2) return Slice::uninitialised(kSmallBlock);
  if (size > kOutputBlock) return Slice::uninitialised(size);
  if (spare_outputs.empty()) return Slice::uninitialised(kOutputBlock);
  Slice block = std::move(spare_outputs.back());
  spare_outputs.pop_back();
  return block;
}

void recycle(Slice block) {
  if (block.size() == kOutputBlock && spare_outputs.size() < kMaxSpareOutputs)
    spare_outputs.push_back(std::move(block));
}
}  // namespace

std::uint8_t* SecureChannel::extend(std::size_t size) {
  if (output_.empty() || output_.back().block.size() - output_.back().used < size)
    output_.push_back({output_block(size), 0});
  Output& out = output_.back();
  std::uint8_t* at = out.block.mutable_data() + out.used;
  out.used += size;
  queued_ += size;
  return at;
}

Task<Result<>> SecureChannel::flush() {
  std::vector<Output> taken;
  std::vector<ByteView> buffers;
  std::size_t total = 0;
  while (!output_.empty() && (taken.empty() || total + output_.front().used <= kMaxFlush)) {
    taken.push_back(std::move(output_.front()));
    output_.pop_front();
    buffers.push_back(taken.back().block.view().first(taken.back().used));
    total += taken.back().used;
  }
  auto written = co_await raw_->write_all(buffers);
  queued_ -= total;
  bytes_out_ += total;
  for (auto& output : taken) recycle(std::move(output.block));
  co_return written;
}

}  // namespace cohive::transport
