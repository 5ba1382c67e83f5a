#include "device_residuals.hpp"

#include "cohive/cuda/codec.hpp"

namespace cohive::cuda {

std::shared_ptr<DeviceResiduals> DeviceResiduals::find(const codec::Residuals& residuals) {
  return std::dynamic_pointer_cast<DeviceResiduals>(residuals.kept_in());
}

Result<std::shared_ptr<DeviceResiduals>> DeviceResiduals::copy_of(const codec::Residuals& residuals,
                                                                  std::shared_ptr<LastingMemory> from) {
  const auto owed = residuals.values();
  auto memory = from->take(residuals.size() * sizeof(float));
  if (!memory) return memory.error();
  auto stream = Stream::create(from->device());
  if (!stream) return stream.error();
  const auto all = memory->floats();
  const ByteView bytes(reinterpret_cast<const std::uint8_t*>(owed.data()), owed.size() * sizeof(float));
  auto queued = owed.empty() ? clear_async(*stream, all) : stream->upload_async(bytes, all.data());
  if (queued) queued = stream->synchronize();
  if (!queued) return queued.error();
  return std::shared_ptr<DeviceResiduals>(new DeviceResiduals(std::move(from), std::move(*memory), !owed.empty()));
}

void DeviceResiduals::read(std::size_t first, std::span<float> out) const {
  auto stream = Stream::create(from_->device()).value();
  stream
      .download_async(owed(first, out.size()).data(),
                      {reinterpret_cast<std::uint8_t*>(out.data()), out.size() * sizeof(float)})
      .value();
  stream.synchronize().value();
}

void DeviceResiduals::write(std::size_t first, std::span<const float> values) {
  note_owed();
  auto stream = Stream::create(from_->device()).value();
  stream
      .upload_async({reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(float)},
                    owed(first, values.size()).data())
      .value();
  stream.synchronize().value();
}

}  // namespace cohive::cuda
