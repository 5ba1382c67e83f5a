#include "state_transfer.hpp"

#include <algorithm>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kChunk = 64 * 1024;
constexpr std::size_t kPiece = 16 * kChunk;  // encoded at a time, where a codec lets a tensor be encoded in pieces
constexpr std::size_t kInlineBytes = 256 * 1024;
constexpr Duration kSendTimeout = 30s;
constexpr Duration kRequestEnd = 1s;  // for END_OF_STREAM, which some callers do not send
constexpr std::size_t kMaxTensors = 1'000'000;
constexpr std::size_t kMaxMetadata = 16 << 20;

/// What a tensor travels as.
struct Encoding {
  codec::Codec codec;
  std::size_t width;  // bytes per value; 0: only the tensor as a whole can be encoded
};

Encoding encoding_of(codec::Codec wanted, const codec::Tensor& tensor) {
  const codec::Codec codec = codec::codec_for(wanted, tensor.dtype, tensor.shape);
  if (codec == codec::Codec::float16) return {codec, 2};
  if (codec != codec::Codec::none) return {codec, 0};
  return {codec, tensor.dtype == codec::DType::bfloat16 ? 4 : codec::size_of(tensor.dtype)};
}

class StateSender {
 public:
  StateSender(Runtime& runtime, rpc::ServerStream& stream, std::string metadata, std::uint64_t skipped)
      : runtime_(runtime), stream_(stream), metadata_(std::move(metadata)), skipped_(skipped) {}

  Task<Result<>> send(codec::Tensor tensor, codec::Codec codec) {
    const auto count = codec::element_count(tensor.shape);
    if (!count || *count * codec::size_of(tensor.dtype) != tensor.data.size())
      co_return Error(Errc::bad_state, "a tensor of another size than its shape");
    const Encoding encoding = encoding_of(codec, tensor);
    TensorView view;
    view.shape = tensor.shape;
    view.dtype = std::string(codec::name_of(tensor.dtype));
    view.requires_grad = tensor.requires_grad;
    view.compression = static_cast<int>(encoding.codec);
    const std::size_t values = encoding.width ? kPiece / encoding.width : *count;
    std::size_t at = 0;
    do {
      const std::size_t piece = std::min<std::size_t>(values, *count - at);
      auto encoded = co_await encode(tensor, encoding, at, piece);
      if (!encoded) co_return encoded.error();
      if (at == 0) {
        const std::size_t size = encoding.width ? *count * encoding.width : encoded->size();
        view.chunks = static_cast<int>((size + kChunk - 1) / kChunk);
      }
      if (auto sent = co_await send_piece(std::move(*encoded), view, at == 0); !sent) co_return sent;
      at += piece;
    } while (at < *count);
    co_return ok();
  }

 private:
  /// Off the loop, unless the values travel as they are or are few.
  Task<Result<Slice>> encode(const codec::Tensor& tensor, Encoding encoding, std::size_t at, std::size_t count) {
    codec::Tensor piece = tensor;
    if (encoding.width) {
      const std::size_t size = codec::size_of(tensor.dtype);
      piece.shape = {static_cast<std::uint32_t>(count)};
      piece.data = tensor.data.sub(at * size, count * size);
    }
    auto work = [piece = std::move(piece), codec = encoding.codec] { return codec::encode_tensor(codec, piece); };
    const bool as_it_is = encoding.codec == codec::Codec::none && tensor.dtype != codec::DType::bfloat16;
    if (as_it_is || count * codec::size_of(tensor.dtype) <= kInlineBytes) co_return work();
    co_return co_await runtime_.offload(std::move(work));
  }

  Task<Result<>> send_piece(Slice bytes, TensorView& view, bool first) {
    do {
      const Slice chunk = bytes.sub(0, std::min(kChunk, bytes.size()));
      bytes.remove_prefix(chunk.size());
      view.buffer = chunk.view();
      const Envelope envelope = envelope_download(std::exchange(metadata_, {}), view, std::exchange(first, false),
                                                  std::exchange(skipped_, 0));
      const ByteView parts[] = {as_bytes(envelope.head), chunk.view(), as_bytes(envelope.tail)};
      auto sent = co_await stream_.send(std::span<const ByteView>(parts), runtime_.after(kSendTimeout));
      if (!sent) co_return sent;
    } while (!bytes.empty());
    co_return ok();
  }

  Runtime& runtime_;
  rpc::ServerStream& stream_;
  std::string metadata_;
  std::uint64_t skipped_;
};

/// The tensor whose chunks are arriving.
struct Assembly {
  TensorView description;
  std::uint64_t decoded_bytes = 0;
  Bytes buffer;
};

class StateReceiver {
 public:
  /// `partial` belongs to the caller; finished tensors are kept there.
  StateReceiver(Runtime& runtime, std::uint64_t max_bytes, PartialState& partial)
      : runtime_(runtime), max_bytes_(max_bytes), partial_(partial), had_(partial.tensors.size()) {}

  Task<Result<>> take(Slice record) {
    auto message = parse_download(record);
    if (!message) co_return message.error();
    if (std::exchange(first_, false)) {
      if (message->skipped != had_ || message->metadata != partial_.metadata) {
        if (message->skipped != 0) co_return Error(Errc::bad_state, "it skipped what we do not have");
        partial_ = {};  // another state, or a donor that cannot go on with one
        had_ = 0;
      }
    }
    if (!message->metadata.empty()) partial_.metadata = std::move(message->metadata);
    if (partial_.metadata.size() > kMaxMetadata) co_return Error(cohive::Errc::limit_exceeded, "metadata of a state");
    if (!message->tensor) co_return ok();
    if (!message->tensor->dtype.empty()) {
      if (auto finished = co_await finish_tensor(); !finished) co_return finished;
      if (auto begun = begin_tensor(*message->tensor); !begun) co_return begun;
    } else if (!current_) {
      co_return Error(Errc::bad_state, "a chunk of no tensor");
    }
    const ByteView bytes = message->tensor->buffer;
    received_ += bytes.size();
    if (received_ > max_bytes_) co_return Error(cohive::Errc::limit_exceeded, "state larger than allowed");
    current_->buffer.insert(current_->buffer.end(), bytes.begin(), bytes.end());
    co_return ok();
  }

  Task<Result<DownloadedState>> finish(PeerId donor) {
    if (auto finished = co_await finish_tensor(); !finished) co_return finished.error();
    if (first_ || partial_.metadata.empty()) co_return Error(Errc::no_donor, "it did not send its state");
    auto decoded = msgpack::decode(as_bytes(partial_.metadata));
    if (!decoded) co_return decoded.error();
    if (!decoded->truthy()) co_return Error(Errc::no_donor, "it did not send its state");
    co_return DownloadedState{donor, std::move(*decoded), std::exchange(partial_, {}).tensors, received_, had_};
  }

 private:
  /// What the tensor will take when decoded is checked before any of it is kept.
  Result<> begin_tensor(const TensorView& description) {
    const auto dtype = codec::dtype_from_name(description.dtype);
    const auto count = codec::element_count(description.shape);
    if (!dtype || !count || !codec::codec_from_wire(description.compression))
      return Error(Errc::bad_state, "unknown codec, dtype or shape");
    if (partial_.tensors.size() >= kMaxTensors) return Error(cohive::Errc::limit_exceeded, "tensors of a state");
    const std::uint64_t bytes = *count * codec::size_of(*dtype);
    if (bytes > max_bytes_ - std::min(max_bytes_, partial_.bytes))
      return Error(cohive::Errc::limit_exceeded, "state larger than allowed");
    current_ = Assembly{description, bytes, {}};
    current_->description.buffer = {};
    return ok();
  }

  Task<Result<>> finish_tensor() {
    if (!current_) co_return ok();
    const std::uint64_t size = current_->decoded_bytes;
    auto work = [assembly = std::make_shared<Assembly>(std::move(*current_))] {
      const TensorView& is = assembly->description;
      return codec::decode_tensor(*codec::codec_from_wire(is.compression), *codec::dtype_from_name(is.dtype), is.shape,
                                  is.requires_grad, assembly->buffer);
    };
    current_.reset();
    auto tensor = size > kInlineBytes ? co_await runtime_.offload(std::move(work)) : work();
    if (!tensor) co_return tensor.error();
    partial_.tensors.push_back(std::move(*tensor));
    partial_.bytes += size;
    co_return ok();
  }

  Runtime& runtime_;
  const std::uint64_t max_bytes_;
  PartialState& partial_;
  std::size_t had_;  // tensors of earlier donors
  std::uint64_t received_ = 0;
  bool first_ = true;
  std::optional<Assembly> current_;
};

}  // namespace

Task<Result<>> send_state(Runtime& runtime, rpc::ServerStream& stream, std::optional<SharedState> state,
                          codec::Compression compression) {
  auto request = co_await stream.receive(runtime.after(kSendTimeout));
  if (!request) co_return request.error();
  if (!*request) co_return Error(cohive::Errc::malformed, stream.peer(), "no request");
  const auto have = parse_request(**request);
  if (!have) co_return have.error().with_peer(stream.peer());
  auto end = co_await stream.receive(runtime.after(kRequestEnd));  // as matchmaking does, before a quick end
  if (!end && end.error().code() != make_error_code(cohive::Errc::timeout)) co_return end.error();
  if (!state) co_return ok();
  if (!state->infos.empty() && state->infos.size() != state->tensors.size())
    co_return Error(Errc::bad_state, "infos and tensors differ in number");
  std::string metadata = msgpack::encode(state->metadata);
  const bool known = have->tensors < state->tensors.size() && have->metadata == metadata;
  const std::size_t skipped = known ? static_cast<std::size_t>(have->tensors) : 0;
  StateSender sender(runtime, stream, std::move(metadata), skipped);
  for (std::size_t i = skipped; i < state->tensors.size(); ++i) {
    codec::Tensor tensor = std::exchange(state->tensors[i], {});
    codec::CompressionInfo info{i, tensor.shape, tensor.dtype};
    const auto codec = compression.choose(state->infos.empty() ? info : state->infos[i]);
    if (!codec) co_return codec.error();
    auto sent = co_await sender.send(std::move(tensor), *codec);
    if (!sent) co_return sent;
  }
  co_return ok();
}

Task<Result<DownloadedState>> receive_state(p2p::Host& host, PeerId donor, std::string protocol, Duration chunk_timeout,
                                            std::uint64_t max_bytes, PartialState& partial) {
  Runtime& runtime = host.runtime();
  auto call = co_await rpc::open_call(host, donor, std::move(protocol), runtime.after(chunk_timeout));
  if (!call) co_return call.error();
  DownloadRequest have;
  if (!partial.tensors.empty()) have = {partial.metadata, partial.tensors.size()};
  const std::string request = encode_request(have);
  if (auto sent = co_await (*call)->send(as_bytes(request), runtime.after(chunk_timeout)); !sent)
    co_return sent.error();
  if (auto ended = co_await (*call)->finish(runtime.after(chunk_timeout)); !ended) co_return ended.error();

  StateReceiver receiver(runtime, max_bytes, partial);
  for (;;) {
    auto record = co_await (*call)->receive(runtime.after(chunk_timeout));
    if (!record) co_return record.error();
    if (!*record) break;
    if (auto taken = co_await receiver.take(std::move(**record)); !taken) co_return taken.error().with_peer(donor);
  }
  auto state = co_await receiver.finish(donor);
  if (!state) co_return state.error().with_peer(donor);
  co_return state;
}

}  // namespace cohive::averaging
