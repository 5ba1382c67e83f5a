#include "device_factored.hpp"

#include "averaging/detail/lease.hpp"
#include "work_log.hpp"

namespace cohive::cuda {
namespace {

std::size_t bytes_of(std::span<const float> values) {
  return values.size_bytes();
}

}  // namespace

DeviceFactored::DeviceFactored(DeviceParts::Impl& parts, std::size_t tensor, averaging::FactorForm form,
                               codec::Residuals& owed)
    : parts_(parts), all_{tensor, 0, parts.tensors.at(tensor).read.size()}, form_(form), owed_(owed) {}

/// Copying megabytes is not for the loop.
Task<Result<Pinned>> DeviceFactored::pinned_copy(std::span<const float> values) {
  auto to = co_await parts_.lanes->pinned(bytes_of(values));
  if (!to) co_return to.error();
  co_return co_await averaging::offload_leased(parts_.runtime, [to = *to, values]() -> Result<Pinned> {
    std::ranges::copy(values, to->floats().begin());
    return to;
  });
}

/// Waits for all that is queued, and copies a result through pinned memory.
Task<Result<>> DeviceFactored::read_back(Stream& stream, Queued& queued, const DeviceBuffer& result, Pinned through,
                                         std::span<float> to) {
  auto copied = stream.download_async(result.bytes().data(), through->bytes().first(bytes_of(to)));
  if (!copied) co_return copied;
  if (auto done = co_await queued.done(parts_.runtime); !done) co_return done;
  co_return co_await averaging::offload_leased(parts_.runtime, [through, to]() -> Result<> {
    std::ranges::copy(through->floats().first(to.size()), to.begin());
    return ok();
  });
}

/// The values, and what is owed of them, to be read by work on this stream.
Task<Result<LowRankProducts::Matrix>> DeviceFactored::matrix(Stream& stream) {
  const auto values = parts_.own(all_, stream);
  if (!values) co_return values.error();
  LowRankProducts::Matrix matrix{values->data(), nullptr, form_.rows, form_.columns, form_.rank};
  if (owed_.empty()) co_return matrix;
  const auto there = co_await parts_.residuals_there(owed_);
  if (!there) co_return there.error();
  matrix.owed = (*there)->owed(0, all_.length).data();
  co_return matrix;
}

/// The library's own preparations may take long, so it is called on the pool of threads. What it queues has one name in
/// the sentences of errors. \param what  a literal
template <class Call>
Task<Result<>> DeviceFactored::call_library(Stream& stream, const char* what, Call call) {
  stream.log().note(what);
  auto called = co_await averaging::offload_leased(parts_.runtime, std::move(call));
  if (called) co_return called;
  co_return called.error().with_context(std::string("starting ") + what + " on GPU " + std::to_string(stream.device()));
}

Task<Result<>> DeviceFactored::project(std::span<const float> q, std::span<float> p) {
  const auto here = co_await pinned_copy(q), result_here = co_await parts_.lanes->pinned(bytes_of(p));
  for (const auto* made : {&here, &result_here})
    if (!*made) co_return made->error();
  const Lanes::Taken lane(*parts_.lanes, co_await parts_.lanes->turn());
  Stream& stream = lane->stream;
  const auto there = DeviceBuffer::create_on(stream, bytes_of(q)),
             result = DeviceBuffer::create_on(stream, bytes_of(p));
  for (const auto* made : {&there, &result})
    if (!*made) co_return made->error();
  Queued queued(stream);
  if (auto sent = stream.upload_async((*here)->bytes().first(bytes_of(q)), there->bytes().data()); !sent)
    co_return sent;
  const auto of = co_await matrix(stream);
  if (!of) co_return of.error();
  auto projected = co_await call_library(stream, "PowerSGD's projection", [&] {
    return parts_.options.products->project(stream.native(), *of, there->floats().data(), result->floats().data());
  });
  if (!projected) co_return projected;
  co_return co_await read_back(stream, queued, *result, *result_here, p);
}

Task<Result<>> DeviceFactored::take_average(std::span<const float> p) {
  const auto here = co_await pinned_copy(p);
  if (!here) co_return here.error();
  const Lanes::Taken lane(*parts_.lanes, co_await parts_.lanes->turn());
  Stream& stream = lane->stream;
  auto there = DeviceBuffer::create_on(stream, bytes_of(p));
  if (!there) co_return there.error();
  Queued queued(stream);
  if (auto sent = stream.upload_async((*here)->bytes().first(bytes_of(p)), there->bytes().data()); !sent)
    co_return sent;
  auto made = co_await call_library(stream, "PowerSGD's orthogonalisation", [&] {
    return parts_.options.products->orthogonalise(stream.native(), there->floats().data(), form_.rows, form_.rank);
  });
  if (!made) co_return made;
  if (auto done = co_await queued.done(parts_.runtime); !done) co_return done;
  p_ = std::move(*there);
  co_return ok();
}

Task<Result<>> DeviceFactored::gather(std::span<float> q) {
  const auto result_here = co_await parts_.lanes->pinned(bytes_of(q));
  if (!result_here) co_return result_here.error();
  const Lanes::Taken lane(*parts_.lanes, co_await parts_.lanes->turn());
  Stream& stream = lane->stream;
  const auto result = DeviceBuffer::create_on(stream, bytes_of(q));
  if (!result) co_return result.error();
  Queued queued(stream);
  const auto of = co_await matrix(stream);
  if (!of) co_return of.error();
  auto gathered = co_await call_library(stream, "PowerSGD's gathering", [&] {
    return parts_.options.products->gather(stream.native(), *of, p_->floats().data(), result->floats().data());
  });
  if (!gathered) co_return gathered;
  co_return co_await read_back(stream, queued, *result, *result_here, q);
}

Task<Result<>> DeviceFactored::apply(std::span<const float> q, bool counts) {
  const auto here = co_await pinned_copy(q);
  if (!here) co_return here.error();
  std::shared_ptr<DeviceResiduals> residuals;
  if (counts) {
    auto there = co_await parts_.residuals_there(owed_);
    if (!there) co_return there.error();
    residuals = std::move(*there);
  }
  const Lanes::Taken lane(*parts_.lanes, co_await parts_.lanes->turn());
  Stream& stream = lane->stream;
  const auto there = DeviceBuffer::create_on(stream, bytes_of(q));
  if (!there) co_return there.error();
  Queued queued(stream);
  if (auto sent = stream.upload_async((*here)->bytes().first(bytes_of(q)), there->bytes().data()); !sent)
    co_return sent;
  const auto of = co_await matrix(stream);
  if (!of) co_return of.error();
  float* const owed = residuals ? residuals->owed(0, all_.length).data() : nullptr;
  auto expanded = co_await call_library(stream, "PowerSGD's expansion", [&] {
    return parts_.options.products->expand(stream.native(), *of, p_->floats().data(), there->floats().data(), owed,
                                           parts_.tensors[all_.tensor].write.data());
  });
  if (!expanded) co_return expanded;
  if (auto noted = parts_.finished(all_, true, stream); !noted) co_return noted;
  co_return co_await queued.done(parts_.runtime);
}

}  // namespace cohive::cuda
