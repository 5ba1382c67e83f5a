#include "cohive/cuda/device_parts.hpp"

#include <atomic>
#include <stdexcept>

#include "averaging/lease.hpp"
#include "averaging/part_math.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/cuda/codec.hpp"
#include "cohive/cuda/device.hpp"
#include "pinned_pool.hpp"

namespace cohive::cuda {

using averaging::Answer;
using averaging::EncodedStretch;
using averaging::OwnContribution;
using averaging::Stretch;
using averaging::Terms;

namespace {

using Pinned = std::shared_ptr<const HostBuffer>;

std::span<float> floats_of(const HostBuffer& buffer, std::size_t count) {
  return buffer.floats().first(count);
}

/// What one stretch after another uses.
struct Lane {
  Stream stream;
  DeviceBuffer encoded, decoded, flag;
  HostBuffer flag_here;
};

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

/// At least `bytes` of the device's memory.
Result<> grow(DeviceBuffer& buffer, std::size_t bytes, int device) {
  if (buffer.size() >= bytes) return ok();
  auto larger = DeviceBuffer::create(bytes, device);
  if (!larger) return larger.error();
  buffer = std::move(*larger);
  return ok();
}

/// Work on a stream that uses memory of this scope: a task that is dropped waits for it.
class Queued {
 public:
  explicit Queued(Stream& stream) : stream_(stream) {}
  ~Queued() {
    if (!done_) (void)stream_.synchronize();
  }
  Queued(const Queued&) = delete;
  Task<Result<>> done(Runtime& runtime) {
    auto result = co_await stream_.done(runtime);
    done_ = true;
    co_return result;
  }

 private:
  Stream& stream_;
  bool done_ = false;
};

/// Our values of a part, copied to the host.
class CopiedValues final : public OwnContribution {
 public:
  CopiedValues(Pinned values, std::size_t count, double weight) : values_(std::move(values)), count_(count), weight_(weight) {}

  bool applied() const noexcept override { return false; }
  void revoke() noexcept override { revoked_->store(true); }

  Result<bool> add(std::span<float> sum, averaging::Adding how) override {
    if (*revoked_) return averaging::lease_ended();
    return averaging::add_values(floats_of(*values_, count_), weight_, sum, how);
  }
  Result<averaging::ReadValues> open() override {
    if (*revoked_) return averaging::lease_ended();
    if (!averaging::all_finite(floats_of(*values_, count_))) return Error(averaging::Errc::not_finite);
    return averaging::ReadValues([values = values_, count = count_, revoked = revoked_](std::size_t first, std::span<float> out) {
      if (*revoked) return false;
      std::ranges::copy(floats_of(*values, count).subspan(first, out.size()), out.begin());
      return true;
    });
  }

 private:
  const Pinned values_;
  const std::size_t count_;
  const double weight_;
  const std::shared_ptr<std::atomic<bool>> revoked_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

struct DeviceParts::Impl {
  /// A lane, until it dies.
  class Taken {
   public:
    Taken(Impl& impl, Semaphore::Units turn) : impl_(impl), turn_(std::move(turn)), lane_(std::move(impl.idle.back())) {
      impl.idle.pop_back();
    }
    ~Taken() { impl_.idle.push_back(std::move(lane_)); }
    Taken(const Taken&) = delete;
    Lane* operator->() const noexcept { return lane_.get(); }
    Lane& operator*() const noexcept { return *lane_; }

   private:
    Impl& impl_;
    const Semaphore::Units turn_;
    std::unique_ptr<Lane> lane_;
  };

  Impl(Runtime& loop, std::vector<averaging::TensorInfo> about, std::vector<std::span<float>> memory, DevicePartsOptions how)
      : runtime(loop), infos(std::move(about)), tensors(std::move(memory)), options(how), turns(loop, how.streams, "a stream") {
    bool fits = infos.size() == tensors.size() && options.streams > 0;
    for (std::size_t i = 0; fits && i < infos.size(); ++i) fits = tensors[i].size() == infos[i].elements();
    if (!fits) throw std::invalid_argument("memory of a device that does not fit the tensors of a round");
  }

  std::span<float> values(const Stretch& stretch) const {
    return tensors.at(stretch.tensor).subspan(stretch.offset, stretch.length);
  }

  Task<Result<Pinned>> download(Stretch stretch);
  Task<Result<EncodedStretch>> encode_here(Stretch stretch, codec::CodecSpec codec);
  Task<Result<EncodedStretch>> encode_there(Stretch stretch, codec::Codec codec);
  /// What came for a stretch, checked and in pinned memory.
  struct Arrived {
    Pinned memory;
    codec::Codec codec;  ///< that the device decodes; none: the values themselves
    std::size_t bytes;
  };
  Task<Result<Arrived>> receive(std::shared_ptr<const averaging::EncodedPart> part, std::size_t count);
  Result<> upload(Lane& lane, const Arrived& arrived, std::span<float> decoded);

  Runtime& runtime;
  const std::vector<averaging::TensorInfo> infos;
  const std::vector<std::span<float>> tensors;
  const DevicePartsOptions options;
  PinnedPool pinned;
  std::vector<std::unique_ptr<Lane>> idle;
  Semaphore turns;
  std::size_t averaged = 0;
};

Result<std::shared_ptr<DeviceParts>> DeviceParts::create(Runtime& runtime, std::vector<averaging::TensorInfo> infos,
                                                         std::vector<std::span<float>> values, DevicePartsOptions options) {
  auto impl = std::make_unique<Impl>(runtime, std::move(infos), std::move(values), options);
  for (std::size_t i = 0; i < options.streams; ++i) {
    auto lane = make_lane(options.device);
    if (!lane) return lane.error();
    impl->idle.push_back(std::make_unique<Lane>(std::move(*lane)));
  }
  return std::shared_ptr<DeviceParts>(new DeviceParts(std::move(impl)));
}

DeviceParts::DeviceParts(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceParts::~DeviceParts() = default;

const std::vector<averaging::TensorInfo>& DeviceParts::infos() const noexcept {
  return impl_->infos;
}
std::size_t DeviceParts::averaged() const noexcept {
  return impl_->averaged;
}

// ---- From the device

Task<Result<Pinned>> DeviceParts::Impl::download(Stretch stretch) {
  const Taken lane(*this, co_await turns.acquire());
  auto to = pinned.take(stretch.length * sizeof(float));
  if (!to) co_return to.error();
  Queued queued(lane->stream);
  if (auto copy = lane->stream.download_async(values(stretch).data(), (*to)->bytes().first(stretch.length * sizeof(float))); !copy)
    co_return copy.error();
  if (auto done = co_await queued.done(runtime); !done) co_return done.error();
  co_return std::move(*to);
}

/// By a codec of the host.
Task<Result<EncodedStretch>> DeviceParts::Impl::encode_here(Stretch stretch, codec::CodecSpec codec) {
  auto copied = co_await download(stretch);
  if (!copied) co_return copied.error();
  auto encoded = co_await runtime.offload(
      [from = *copied, codec, count = stretch.length] { return codec::encode_finite(codec, floats_of(*from, count)); });
  if (!encoded) co_return Error(averaging::Errc::not_finite);
  const auto owner = std::make_shared<const Slice>(std::move(*encoded));
  co_return EncodedStretch{owner->view(), owner};
}

Task<Result<EncodedStretch>> DeviceParts::Impl::encode_there(Stretch stretch, codec::Codec codec) {
  const Taken lane(*this, co_await turns.acquire());
  const std::size_t bytes = *encoded_size(codec, stretch.length);
  auto to = pinned.take(bytes);
  if (!to) co_return to.error();
  if (auto room = grow(lane->encoded, bytes, options.device); !room) co_return room.error();
  auto* flag = reinterpret_cast<std::uint32_t*>(lane->flag_here.bytes().data());
  *flag = 0;
  Stream& stream = lane->stream;
  auto* flag_there = reinterpret_cast<std::uint32_t*>(lane->flag.bytes().data());
  Queued queued(stream);
  if (auto sent = stream.upload_async(lane->flag_here.bytes(), flag_there); !sent) co_return sent.error();
  if (auto looked = find_non_finite_async(stream, values(stretch), flag_there); !looked) co_return looked.error();
  if (auto coded = encode_async(stream, codec, values(stretch), lane->encoded.bytes().first(bytes)); !coded) co_return coded.error();
  if (auto copy = stream.download_async(flag_there, lane->flag_here.bytes()); !copy) co_return copy.error();
  if (auto copy = stream.download_async(lane->encoded.bytes().data(), (*to)->bytes().first(bytes)); !copy) co_return copy.error();
  if (auto done = co_await queued.done(runtime); !done) co_return done.error();
  if (*flag != 0) co_return Error(averaging::Errc::not_finite);
  co_return EncodedStretch{ByteView((*to)->bytes()).first(bytes), *to};
}

Task<Result<EncodedStretch>> DeviceParts::encode(Stretch stretch, codec::CodecSpec codec) {
  if (can_encode(codec.codec)) co_return co_await impl_->encode_there(stretch, codec.codec);
  co_return co_await impl_->encode_here(stretch, codec);
}

Task<Result<std::shared_ptr<OwnContribution>>> DeviceParts::contribute(Stretch stretch, codec::CodecSpec, Terms terms) {
  auto copied = co_await impl_->download(stretch);
  if (!copied) co_return copied.error();
  co_return std::make_shared<CopiedValues>(std::move(*copied), stretch.length, terms.weight);
}

// ---- To the device

/// What the device does not decode is decoded here.
Task<Result<DeviceParts::Impl::Arrived>> DeviceParts::Impl::receive(std::shared_ptr<const averaging::EncodedPart> part,
                                                                    std::size_t count) {
  const std::size_t values = count * sizeof(float);
  auto to = pinned.take(std::max(part->buffer.size(), values));
  if (!to) co_return to.error();
  co_return co_await runtime.offload([part, count, values, to = *to]() -> Result<Arrived> {
    const auto decoder = averaging::open_finite(*part, count);
    if (!decoder) return decoder.error();
    if (part->dtype == codec::DType::float32 && check_encoded(part->codec, count, part->buffer)) {
      std::ranges::copy(part->buffer, to->bytes().begin());
      return Arrived{to, part->codec, part->buffer.size()};
    }
    (*decoder)->decode(0, floats_of(*to, count));
    return Arrived{to, codec::Codec::none, values};
  });
}

/// Queues copying and decoding.
Result<> DeviceParts::Impl::upload(Lane& lane, const Arrived& arrived, std::span<float> decoded) {
  const auto bytes = ByteView(arrived.memory->bytes()).first(arrived.bytes);
  if (arrived.codec == codec::Codec::none) return lane.stream.upload_async(bytes, decoded.data());
  if (auto room = grow(lane.encoded, arrived.bytes, options.device); !room) return room;
  const auto encoded = lane.encoded.bytes().first(arrived.bytes);
  if (auto sent = lane.stream.upload_async(bytes, encoded.data()); !sent) return sent;
  return decode_async(lane.stream, arrived.codec, encoded, decoded);
}

Task<Result<>> DeviceParts::apply(Stretch stretch, Answer answer, Terms terms) {
  Impl& self = *impl_;
  const auto arrived = co_await self.receive(answer.part, stretch.length);
  if (!arrived) co_return arrived.error();
  const Impl::Taken lane(self, co_await self.turns.acquire());
  const auto values = self.values(stretch);
  const auto alpha = static_cast<float>(terms.alpha);
  // Without the rounding of a sum all members hold the same.
  const bool as_it_is = answer.form == Answer::Form::average && alpha == 1;
  if (!as_it_is)
    if (auto room = grow(lane->decoded, stretch.length * sizeof(float), self.options.device); !room) co_return room;
  const auto decoded = as_it_is ? values : lane->decoded.floats().first(stretch.length);
  Queued queued(lane->stream);
  if (auto sent = self.upload(*lane, *arrived, decoded); !sent) co_return sent;
  if (!as_it_is) {
    auto moved = answer.form == Answer::Form::average ? move_towards_async(lane->stream, decoded, alpha, values)
                                                      : add_async(lane->stream, decoded, alpha, values);
    if (!moved) co_return moved;
  }
  if (auto done = co_await queued.done(self.runtime); !done) co_return done;
  self.averaged += stretch.length;
  co_return ok();
}

}  // namespace cohive::cuda
