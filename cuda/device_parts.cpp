#include "cohive/cuda/device_parts.hpp"

#include <atomic>
#include <stdexcept>

#include "averaging/detail/lease.hpp"
#include "averaging/detail/part_math.hpp"
#include "cohive/cuda/codec.hpp"
#include "device_factored.hpp"
#include "failure.hpp"

namespace cohive::cuda {

using averaging::Answer;
using averaging::EncodedStretch;
using averaging::OwnContribution;
using averaging::Stretch;
using averaging::TensorSpan;
using averaging::Terms;

namespace {

std::span<float> floats_of(const HostBuffer& buffer, std::size_t count) {
  return buffer.floats().first(count);
}

/// Our values of a part, copied to the host.
class CopiedValues final : public OwnContribution {
 public:
  CopiedValues(Pinned values, std::size_t count, double weight)
      : values_(std::move(values)), count_(count), weight_(weight) {}

  bool applied() const noexcept override { return false; }
  void revoke() noexcept override { revoked_->store(true); }

  Result<bool> add(std::span<float> sum, averaging::Adding how) override {
    if (*revoked_) return averaging::lease_ended();
    return averaging::add_values(floats_of(*values_, count_), weight_, sum, how);
  }
  Result<averaging::ReadValues> open() override {
    if (*revoked_) return averaging::lease_ended();
    if (!averaging::all_finite(floats_of(*values_, count_))) return Error(averaging::Errc::not_finite);
    return averaging::ReadValues(
        [values = values_, count = count_, revoked = revoked_](std::size_t first, std::span<float> out) {
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

DeviceParts::Impl::Impl(Runtime& loop, std::vector<averaging::TensorInfo> about, std::vector<TensorSpan> memory,
                        DevicePartsOptions how)
    : runtime(loop),
      infos(std::move(about)),
      tensors(std::move(memory)),
      options(std::move(how)),
      lanes(options.lanes),
      moving(loop, 1, "residuals on their way to a GPU"),
      scaled(infos.size()),
      final(infos.size()) {
  bool fits = infos.size() == tensors.size() && (lanes || options.streams > 0) &&
              (!options.residuals || options.residuals->size() == infos.size());
  for (std::size_t i = 0; fits && i < infos.size(); ++i)
    fits = tensors[i].read.size() == infos[i].elements() && tensors[i].write.size() == infos[i].elements();
  if (!fits) throw std::invalid_argument("memory of a device that does not fit the tensors of a round");
}

Result<std::shared_ptr<DeviceParts>> DeviceParts::create(Runtime& runtime, std::vector<averaging::TensorInfo> infos,
                                                         std::vector<TensorSpan> memory, DevicePartsOptions options) {
  auto impl = std::make_unique<Impl>(runtime, std::move(infos), std::move(memory), std::move(options));
  if (!impl->lanes) {
    auto made = Lanes::create(runtime, impl->options.device, impl->options.streams);
    if (!made) return made.error();
    impl->lanes = std::move(*made);
  }
  return std::shared_ptr<DeviceParts>(new DeviceParts(std::move(impl)));
}

DeviceParts::DeviceParts(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceParts::~DeviceParts() = default;

bool DeviceParts::keeps_residuals() const noexcept {
  return impl_->options.residuals != nullptr;
}
const std::vector<averaging::TensorInfo>& DeviceParts::infos() const noexcept {
  return impl_->infos;
}
std::size_t DeviceParts::averaged() const noexcept {
  return impl_->averaged;
}

// ---- The memory

/// The stretch's values, to be read by work on this stream. The first use of each applies the factor.
Result<std::span<const float>> DeviceParts::Impl::own(const Stretch& stretch, Stream& stream) {
  const auto& tensor = tensors.at(stretch.tensor);
  if (options.factor != 1)
    for (const Stretch& fresh : scaled.claim(stretch)) {
      const auto values = tensor.read.subspan(fresh.offset, fresh.length);
      if (auto queued = scale_async(stream, values, options.factor); !queued) return queued.error();
    }
  return std::span<const float>(tensor.read.subspan(stretch.offset, stretch.length));
}

kernels::Applied DeviceParts::Impl::destination(const Stretch& stretch) const {
  const auto& [read, write] = tensors[stretch.tensor];
  return {read.data() + stretch.offset, write.data() + stretch.offset, options.differences};
}

Result<> DeviceParts::Impl::finished(const Stretch& stretch, bool with_average, Stream& stream) {
  if (final.claim(stretch).empty()) return ok();
  if (with_average) averaged += stretch.length;
  return options.on_result ? options.on_result({stretch, with_average}, stream) : ok();
}

/// The final values of a stretch that has no average.
Result<> DeviceParts::Impl::keep(const Stretch& stretch, Stream& stream) {
  const auto values = own(stretch, stream);
  if (!values) return values.error();
  const auto to = tensors[stretch.tensor].write.subspan(stretch.offset, stretch.length);
  if (options.differences) {
    if (auto cleared = clear_async(stream, to); !cleared) return cleared;
  } else if (to.data() != values->data()) {
    if (auto copied = copy_async(stream, *values, to); !copied) return copied;
  }
  return finished(stretch, false, stream);
}

// ---- From the device

Task<Result<std::shared_ptr<DeviceResiduals>>> DeviceParts::Impl::residuals_there(codec::Residuals& residuals) {
  if (auto there = DeviceResiduals::find(residuals)) co_return there;
  const auto turn = co_await moving.acquire();
  if (auto there = DeviceResiduals::find(residuals)) co_return there;  // another stretch of the tensor was first
  auto copied = co_await averaging::offload_leased(
      runtime, [&residuals, from = lanes->lasting()] { return DeviceResiduals::copy_of(residuals, from); });
  if (copied) residuals.keep_in(*copied);
  co_return copied;
}

Task<Result<DeviceParts::Impl::Feedback>> DeviceParts::Impl::feedback(Stretch stretch, codec::Codec codec) {
  if (!options.residuals || !codec::info(codec).error_feedback) co_return Feedback();
  const auto there = co_await residuals_there((*options.residuals)[stretch.tensor]);
  if (!there) co_return there.error();
  if (!(*there)->has_lost()) {
    const auto turn = co_await moving.acquire();
    if (!(*there)->has_lost()) {
      auto made = co_await averaging::offload_leased(runtime, [of = *there] { return of->make_lost(); });
      if (!made) co_return made.error();
      (*there)->keep_lost(std::move(*made));
    }
  }
  Feedback result{*there, {}, (*there)->lost(stretch.offset, stretch.length)};
  if ((*there)->owes()) result.owed = (*there)->owed(stretch.offset, stretch.length);
  co_return result;
}

/// The values, and what is owed of them.
Task<Result<Pinned>> DeviceParts::Impl::download_corrected(Stretch stretch, codec::Codec codec) {
  const Lanes::Taken lane(*lanes, co_await lanes->turn());
  const std::size_t bytes = stretch.length * sizeof(float);
  auto to = co_await lanes->pinned(bytes);
  if (!to) co_return to.error();
  const auto fed_back = co_await feedback(stretch, codec);
  if (!fed_back) co_return fed_back.error();
  const auto due = fed_back->owed;
  if (auto room = lane->grow_decoded(due.empty() ? 0 : bytes); !room) co_return room.error();
  Queued queued(lane->stream);
  auto values = own(stretch, lane->stream);
  if (!values) co_return values.error();
  if (!due.empty()) {
    const auto corrected = lane->decoded.floats().first(stretch.length);
    if (auto copied = copy_async(lane->stream, *values, corrected); !copied) co_return copied.error();
    if (auto added = add_async(lane->stream, due, 1, corrected); !added) co_return added.error();
    values = corrected;
  }
  if (auto copy = lane->stream.download_async(values->data(), (*to)->bytes().first(bytes)); !copy)
    co_return copy.error();
  if (auto done = co_await queued.done(runtime); !done) co_return done.error();
  co_return std::move(*to);
}

/// Queues noting that a stretch was delivered. \param sent  how; none: without any loss
Task<Result<>> DeviceParts::Impl::note_delivery(Stream& stream, Stretch stretch, codec::Codec sent) {
  if (!options.residuals) co_return ok();
  const bool lost = sent != codec::Codec::none;
  codec::Residuals& residuals = (*options.residuals)[stretch.tensor];
  if (!lost && residuals.empty()) co_return ok();
  const auto there = co_await residuals_there(residuals);
  if (!there) co_return there.error();
  const auto due = (*there)->owed(stretch.offset, stretch.length);
  if (!lost) co_return (*there)->owes() ? clear_async(stream, due) : ok();
  (*there)->note_owed();
  co_return copy_async(stream, (*there)->lost(stretch.offset, stretch.length), due);
}

Task<Result<EncodedStretch>> DeviceParts::Impl::encode(Stretch stretch, codec::CodecSpec codec) {
  const Lanes::Taken lane(*lanes, co_await lanes->turn());
  const std::size_t bytes = *encoded_size(codec, stretch.length);
  auto to = co_await lanes->pinned(bytes);
  if (!to) co_return to.error();
  const auto fed_back = co_await feedback(stretch, codec.codec);
  if (!fed_back) co_return fed_back.error();
  if (auto room = lane->grow_encoded(bytes); !room) co_return room.error();
  if (auto room = lane->grow_decoded(scratch_size(codec.codec, stretch.length)); !room) co_return room.error();
  Stream& stream = lane->stream;
  Queued queued(stream);
  const auto values = own(stretch, stream);
  if (!values) co_return values.error();
  const auto flag = lane->clear_flag();
  if (!flag) co_return flag.error();
  const auto encoded = lane->encoded.bytes().first(bytes);
  const EncodeMemory memory{
      .scratch = lane->decoded.bytes(), .owed = fed_back->owed, .left = fed_back->lost, .found = *flag};
  if (auto coded = encode_async(stream, codec, *values, encoded, memory); !coded) co_return coded.error();
  if (auto read = lane->read_flag(); !read) co_return read.error();
  if (auto copy = stream.download_async(encoded.data(), (*to)->bytes().first(bytes)); !copy) co_return copy.error();
  if (auto done = co_await queued.done(runtime); !done) co_return done.error();
  if (lane->flagged()) co_return Error(averaging::Errc::not_finite);
  co_return EncodedStretch{ByteView((*to)->bytes()).first(bytes), *to};
}

Task<Result<EncodedStretch>> DeviceParts::Impl::encode_on_host(Stretch stretch, codec::CodecSpec codec) {
  const auto memory = co_await download_corrected(stretch, codec.codec);
  if (!memory) co_return memory.error();
  auto encoded = co_await runtime.offload([memory = *memory, codec, length = stretch.length]() -> Result<Slice> {
    const auto values = floats_of(*memory, length);
    auto made = codec::encode_finite(codec, values);
    if (!made) return Error(averaging::Errc::not_finite);
    const auto lost = codec::decode_and_accumulate(codec.codec, codec::DType::float32, *made, -1, values);
    return lost ? Result<Slice>(std::move(*made)) : lost.error();
  });
  if (!encoded) co_return encoded.error();
  const Lanes::Taken lane(*lanes, co_await lanes->turn());
  const auto fed_back = co_await feedback(stretch, codec.codec);
  if (!fed_back) co_return fed_back.error();
  Queued queued(lane->stream);
  const auto lost = fed_back->lost;
  if (auto kept = lane->stream.upload_async(ByteView((*memory)->bytes()).first(lost.size_bytes()), lost.data()); !kept)
    co_return kept.error();
  if (auto done = co_await queued.done(runtime); !done) co_return done.error();
  const auto owner = std::make_shared<const Slice>(std::move(*encoded));
  co_return EncodedStretch{owner->view(), owner};
}

Task<Result<EncodedStretch>> DeviceParts::encode(Stretch stretch, codec::CodecSpec codec) {
  return can_encode(codec.codec) ? impl_->encode(stretch, codec) : impl_->encode_on_host(stretch, codec);
}

Task<Result<std::shared_ptr<OwnContribution>>> DeviceParts::contribute(Stretch stretch, codec::CodecSpec codec,
                                                                       Terms terms) {
  auto copied = co_await impl_->download_corrected(stretch, codec.codec);
  if (!copied) co_return copied.error();
  co_return std::make_shared<CopiedValues>(std::move(*copied), stretch.length, terms.weight);
}

// ---- To the device

/// What the device does not decode is decoded here.
Task<Result<DeviceParts::Impl::Arrived>> DeviceParts::Impl::receive(std::shared_ptr<const averaging::EncodedPart> part,
                                                                    std::size_t count) {
  const std::size_t values = count * sizeof(float);
  auto to = co_await lanes->pinned(std::max(part->buffer.size(), values));
  if (!to) co_return to.error();
  co_return co_await runtime.offload([part, count, values, to = *to]() -> Result<Arrived> {
    const auto decoder = averaging::open_finite(*part, count);
    if (!decoder) return decoder.error();
    if (check_encoded(part->codec, count, part->buffer, part->dtype)) {
      std::ranges::copy(part->buffer, to->bytes().begin());
      return Arrived{to, part->codec, part->dtype, part->buffer.size()};
    }
    (*decoder)->decode(0, floats_of(*to, count));
    return Arrived{to, codec::Codec::none, codec::DType::float32, values};
  });
}

/// Queues copying, decoding and applying, in as few passes as there can be.
Result<> DeviceParts::Impl::apply(Lane& lane, const Stretch& stretch, Answer::Form form, const Arrived& arrived,
                                  float alpha) {
  Stream& stream = lane.stream;
  const auto to = destination(stretch);
  const std::span out(to.out, stretch.length);
  const bool difference = form == Answer::Form::difference;
  // Without the rounding of a sum all members hold the same.
  const bool as_it_is = !difference && alpha == 1 && !to.differences;
  const bool is_added = difference && !to.differences && to.own == to.out;
  const bool plain = arrived.codec == codec::Codec::none && arrived.dtype == codec::DType::float32;
  if (auto room = lane.grow_encoded(arrived.bytes); !room) return room;
  if (auto room = lane.grow_decoded(as_it_is || is_added ? 0 : out.size_bytes()); !room) return room;
  const auto decoded = as_it_is ? out : lane.decoded.floats().first(is_added ? 0 : out.size());

  const auto encoded = lane.encoded.bytes().first(arrived.bytes);
  const bool needs_decoding = !plain || is_added;
  void* const goes_to = needs_decoding ? static_cast<void*>(encoded.data()) : decoded.data();
  const auto bytes = ByteView(arrived.memory->bytes()).first(arrived.bytes);
  if (auto sent = stream.upload_async(bytes, goes_to); !sent) return sent;
  if (is_added) return accumulate_async(stream, arrived.codec, encoded, alpha, out, arrived.dtype);
  if (needs_decoding)
    if (auto read = decode_async(stream, arrived.codec, encoded, decoded, arrived.dtype); !read) return read;
  if (as_it_is) return ok();
  const auto apply = difference ? &kernels::apply_difference : &kernels::apply_average;
  return on(stream, [&](CUstream_st* queue) { return apply(queue, decoded.data(), alpha, to, stretch.length); });
}

Task<Result<>> DeviceParts::apply(Stretch stretch, Answer answer, Terms terms) {
  Impl& self = *impl_;
  const auto arrived = co_await self.receive(answer.part, stretch.length);
  if (!arrived) co_return arrived.error();
  const Lanes::Taken lane(*self.lanes, co_await self.lanes->turn());
  Queued queued(lane->stream);
  if (const auto values = self.own(stretch, lane->stream); !values) co_return values.error();
  if (answer.sent && terms.weight > 0)
    if (auto noted = co_await self.note_delivery(lane->stream, stretch, answer.sent->codec); !noted) co_return noted;
  const auto alpha = static_cast<float>(terms.alpha);
  if (auto applied = self.apply(*lane, stretch, answer.form, *arrived, alpha); !applied) co_return applied;
  if (auto noted = self.finished(stretch, true, lane->stream); !noted) co_return noted;
  co_return co_await queued.done(self.runtime);
}

std::unique_ptr<averaging::FactoredTensor> DeviceParts::factored(std::size_t tensor, averaging::FactorForm form,
                                                                 codec::Residuals& owed) {
  if (!impl_->options.products) return nullptr;
  return std::make_unique<DeviceFactored>(*impl_, tensor, form, owed);
}

Task<void> DeviceParts::finish() {
  Impl& self = *impl_;
  const Lanes::Taken lane(*self.lanes, co_await self.lanes->turn());
  Queued queued(lane->stream);
  for (std::size_t i = 0; i < self.infos.size(); ++i)
    for (const Stretch& gap : self.final.missing({i, 0, self.tensors[i].read.size()}))
      self.keep(gap, lane->stream).value();
  (co_await queued.done(self.runtime)).value();
}

}  // namespace cohive::cuda
