#include "lanes.hpp"

#include <cuda_runtime_api.h>

#include "failure.hpp"

namespace cohive::cuda {
namespace {

Result<Lane> make_lane(int device) {
  auto stream = Stream::create(device);
  if (!stream) return stream.error();
  auto none = DeviceBuffer::create(0, device), other = DeviceBuffer::create(0, device);
  auto flag = DeviceBuffer::create(sizeof(std::uint32_t), device);
  auto flag_here = HostBuffer::create(sizeof(std::uint32_t));
  for (const auto* made : {&none, &other, &flag})
    if (!*made) return made->error();
  if (!flag_here) return flag_here.error();
  return Lane{std::move(*stream), std::move(*none), std::move(*other), std::move(*flag), std::move(*flag_here)};
}

std::uint32_t* words(MutableBytes bytes) {
  return reinterpret_cast<std::uint32_t*>(bytes.data());
}

}  // namespace

Result<> Lane::grow(DeviceBuffer& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return ok();
  auto larger = DeviceBuffer::create_on(stream, bytes);
  if (!larger) return larger.error();
  buffer = std::move(*larger);
  return ok();
}

Result<std::uint32_t*> Lane::clear_flag() {
  *words(flag_here.bytes()) = 0;
  if (auto sent = stream.upload_async(flag_here.bytes(), flag.bytes().data()); !sent) return sent.error();
  return words(flag.bytes());
}

Result<> Lane::read_flag() {
  return stream.download_async(flag.bytes().data(), flag_here.bytes());
}

bool Lane::flagged() const {
  return *words(flag_here.bytes()) != 0;
}

Result<std::shared_ptr<Lanes>> Lanes::create(Runtime& runtime, int device, std::size_t count) {
  auto lasting = LastingMemory::create(device);
  if (!lasting) return lasting.error();
  auto gate = Stream::create(device);
  if (!gate) return gate.error();
  auto reached = Event::create(device), passed = Event::create(device);
  for (const auto* made : {&reached, &passed})
    if (!*made) return made->error();
  std::shared_ptr<Lanes> lanes(
      new Lanes(runtime, count, std::move(*lasting), std::move(*gate), std::move(*reached), std::move(*passed)));
  for (std::size_t i = 0; i < count; ++i) {
    auto lane = make_lane(device);
    if (!lane) return lane.error();
    lanes->idle_.push_back(std::make_unique<Lane>(std::move(*lane)));
  }
  return lanes;
}

Lanes::Lanes(Runtime& runtime, std::size_t count, std::shared_ptr<LastingMemory> lasting, Stream gate, Event reached,
             Event passed)
    : runtime_(runtime),
      lasting_(std::move(lasting)),
      turns_(runtime, count, "a stream"),
      gate_(std::move(gate)),
      reached_(std::move(reached)),
      passed_(std::move(passed)) {}

Result<> Lanes::follow(CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  if (auto recorded = reached_.record(stream); !recorded) return recorded;
  return reached_.hold_back(gate_.native());
}

/// An error here is the device's, and comes again with the work itself.
void Lanes::hold_back(Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (passed_.record(gate_.native())) (void)passed_.hold_back(stream.native());
}

Task<Result<Pinned>> Lanes::pinned(std::size_t bytes) {
  if (auto again = pinned_->reuse(bytes)) co_return again;
  co_return co_await runtime_.offload([pool = pinned_, bytes] { return pool->take(bytes); });
}

Lanes::Taken::Taken(Lanes& lanes, Semaphore::Units turn)
    : lanes_(lanes), turn_(std::move(turn)), lane_(std::move(lanes.idle_.back())) {
  lanes.idle_.pop_back();
  lanes.hold_back(lane_->stream);
}

Lanes::Taken::~Taken() {
  lanes_.idle_.push_back(std::move(lane_));
}

}  // namespace cohive::cuda
