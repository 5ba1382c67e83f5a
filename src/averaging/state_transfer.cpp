#include "state_transfer.hpp"

#include <algorithm>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kChunk = 64 * 1024;
constexpr Duration kSendTimeout = 30s;
constexpr Duration kRequestEnd = 1s;  // for END_OF_STREAM, which some callers do not send
constexpr std::size_t kMaxTensors = 1'000'000;

/// The tensor whose chunks are arriving.
struct Assembly {
  TensorView description;
  Bytes buffer;
};

Result<codec::Tensor> finish(Assembly assembly, const PeerId& donor) {
  const auto codec = codec::codec_from_wire(assembly.description.compression);
  const auto dtype = codec::dtype_from_name(assembly.description.dtype);
  if (!codec || !dtype) return Error(Errc::bad_state, donor, "unknown codec or dtype");
  auto tensor = codec::decode_tensor(*codec, *dtype, assembly.description.shape, assembly.description.requires_grad, assembly.buffer);
  if (!tensor) return tensor.error().with_peer(donor);
  return tensor;
}

}  // namespace

Task<Result<>> send_state(Runtime& runtime, rpc::ServerStream& stream, std::optional<SharedState> state, codec::Codec codec) {
  auto request = co_await stream.receive(runtime.after(kSendTimeout));
  if (!request) co_return request.error();
  auto end = co_await stream.receive(runtime.after(kRequestEnd));  // as matchmaking does, before a quick end
  if (!end && end.error().code() != make_error_code(cohive::Errc::timeout)) co_return end.error();
  if (!state) co_return ok();
  std::string metadata = msgpack::encode(state->metadata);
  for (const auto& tensor : state->tensors) {
    const bool halves = codec == codec::Codec::float16 && codec::is_floating(tensor.dtype) && tensor.dtype != codec::DType::bfloat16;
    auto encoded = codec::encode_tensor(codec, tensor);
    if (!encoded) co_return encoded.error();
    TensorView view;
    view.shape = tensor.shape;
    view.dtype = std::string(codec::name_of(tensor.dtype));
    view.requires_grad = tensor.requires_grad;
    view.compression = halves ? static_cast<int>(codec::Codec::float16) : 0;
    view.chunks = static_cast<int>((encoded->size() + kChunk - 1) / kChunk);
    std::size_t at = 0;
    do {
      const Slice chunk = encoded->sub(at, std::min(kChunk, encoded->size() - at));
      view.buffer = chunk.view();
      const Envelope envelope = envelope_download(std::exchange(metadata, {}), view, at == 0);
      const ByteView parts[] = {as_bytes(envelope.head), chunk.view(), as_bytes(envelope.tail)};
      auto sent = co_await stream.send(std::span<const ByteView>(parts), runtime.after(kSendTimeout));
      if (!sent) co_return sent;
      at += chunk.size();
    } while (at < encoded->size());
  }
  co_return ok();
}

Task<Result<DownloadedState>> receive_state(p2p::Host& host, PeerId donor, std::string protocol, Duration chunk_timeout,
                                            std::uint64_t max_bytes) {
  Runtime& runtime = host.runtime();
  auto call = co_await rpc::open_call(host, donor, std::move(protocol), runtime.after(chunk_timeout));
  if (!call) co_return call.error();
  if (auto sent = co_await (*call)->send(ByteView(), runtime.after(chunk_timeout)); !sent) co_return sent.error();
  if (auto ended = co_await (*call)->finish(runtime.after(chunk_timeout)); !ended) co_return ended.error();

  DownloadedState state;
  state.donor = donor;
  std::string metadata;
  std::optional<Assembly> current;
  for (;;) {
    auto record = co_await (*call)->receive(runtime.after(chunk_timeout));
    if (!record) co_return record.error();
    std::optional<DownloadMessage> message;
    if (*record) {
      auto parsed = parse_download(**record);
      if (!parsed) co_return parsed.error().with_peer(donor);
      message = std::move(*parsed);
      if (!message->metadata.empty()) metadata = message->metadata;
      if (!message->tensor) continue;
    }
    const bool new_tensor = message && !message->tensor->dtype.empty();
    if (current && (!message || new_tensor)) {
      auto tensor = finish(std::move(*current), donor);
      if (!tensor) co_return tensor.error();
      state.tensors.push_back(std::move(*tensor));
      current.reset();
      if (state.tensors.size() > kMaxTensors) co_return Error(cohive::Errc::limit_exceeded, donor, "tensors of a state");
    }
    if (!message) break;
    if (new_tensor) {
      current = Assembly{*message->tensor, {}};
      current->description.buffer = {};
    } else if (!current) {
      co_return Error(Errc::bad_state, donor, "a chunk of no tensor");
    }
    const ByteView bytes = message->tensor->buffer;
    state.bytes += bytes.size();
    if (state.bytes > max_bytes) co_return Error(cohive::Errc::limit_exceeded, donor, "state larger than allowed");
    current->buffer.insert(current->buffer.end(), bytes.begin(), bytes.end());
  }
  if (metadata.empty()) co_return Error(Errc::no_donor, donor, "it did not send its state");
  auto decoded = msgpack::decode(as_bytes(metadata));
  if (!decoded) co_return decoded.error().with_peer(donor);
  if (!decoded->truthy()) co_return Error(Errc::no_donor, donor, "it did not send its state");
  state.metadata = std::move(*decoded);
  co_return state;
}

}  // namespace cohive::averaging
