#include "state_transfer.hpp"

#include <algorithm>

#include "averaging/tensors/decode_into.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "manifest.hpp"
#include "uploads.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kChunk = 64 * 1024;
constexpr std::size_t kPiece = 16 * kChunk;  // encoded at a time, where a codec lets a tensor be encoded in pieces
constexpr std::size_t kInlineBytes = 256 * 1024;
constexpr Duration kSendTimeout = 30s;
constexpr Duration kRoomTime = 20s;  // to find a path that is wide enough, hole punching included
constexpr std::size_t kMaxTensors = 1'000'000;
constexpr std::size_t kMaxMetadata = 16 << 20;

/// What a tensor travels as.
struct Encoding {
  Encoding(codec::Codec kind, codec::DType dtype) : codec(kind), width(codec::streaming_width(kind, dtype)) {}
  codec::Codec codec;
  std::size_t width;  // bytes per value; 0: only the tensor as a whole can be encoded
};

class StateSender {
 public:
  StateSender(Runtime& runtime, rpc::ServerStream& stream, SharedState& state)
      : runtime_(runtime),
        stream_(stream),
        state_(&state),
        reader_(state.reader),
        metadata_(msgpack::encode(state.metadata)) {}

  Task<Result<>> send(std::size_t number, codec::Codec codec) {
    const bool live = is_live(reader_.get(), number);
    const std::size_t bytes = size_of(*state_, reader_.get(), number);
    codec::Tensor tensor = std::exchange(state_->tensors[number], {});
    const std::size_t width = codec::size_of(tensor.dtype);
    const auto count = codec::element_count(tensor.shape);
    if (!count || *count * width != bytes) co_return Error(Errc::bad_state, "a tensor of another size than its shape");
    const Encoding encoding(codec::codec_for(codec, tensor.dtype, tensor.shape), tensor.dtype);
    TensorView view;
    view.shape = tensor.shape;
    view.dtype = std::string(codec::name_of(tensor.dtype));
    view.requires_grad = tensor.requires_grad;
    view.compression = static_cast<int>(encoding.codec);
    const std::size_t values = encoding.width ? kPiece / encoding.width : *count;
    std::size_t at = 0;
    do {
      const std::size_t piece = std::min<std::size_t>(values, *count - at);
      codec::Tensor part = tensor;
      if (encoding.width) part.shape = {static_cast<std::uint32_t>(piece)};
      if (!live) part.data = tensor.data.sub(at * width, piece * width);
      auto encoded = co_await encode(std::move(part), encoding, live ? std::optional(number) : std::nullopt, at * width,
                                     piece * width);
      if (!encoded) co_return encoded.error();
      if (live) reader_->done(number, at * width, piece * width);
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
  /// \param live  the tensor's number, where its values have to be read
  Task<Result<Slice>> encode(codec::Tensor piece, Encoding encoding, std::optional<std::size_t> live,
                             std::size_t offset, std::size_t size) {
    const bool as_it_is = codec::travels_as_it_is(encoding.codec, piece.dtype);
    auto work = [piece = std::move(piece), codec = encoding.codec, reader = reader_, live, offset,
                 size]() mutable -> Result<Slice> {
      if (live) {
        auto bytes = reader->read(*live, offset, size);
        if (!bytes) return Error(Errc::state_changed);
        piece.data = std::move(*bytes);
      }
      return codec::encode_tensor(codec, piece);
    };
    if (!live && (as_it_is || size <= kInlineBytes)) co_return work();
    co_return co_await runtime_.offload(std::move(work));
  }

  Task<Result<>> send_piece(Slice bytes, TensorView& view, bool first) {
    do {
      const Slice chunk = bytes.sub(0, std::min(kChunk, bytes.size()));
      bytes.remove_prefix(chunk.size());
      view.buffer = chunk.view();
      const Envelope envelope = envelope_download(std::exchange(metadata_, {}), view, std::exchange(first, false));
      const ByteView parts[] = {as_bytes(envelope.head), chunk.view(), as_bytes(envelope.tail)};
      auto sent = co_await stream_.send(std::span<const ByteView>(parts), runtime_.after(kSendTimeout));
      if (!sent) co_return sent;
      if (!pace_.sent(chunk.size()) || holds_too_long(runtime_, reader_.get()))
        co_return Error(Errc::slow_reader, stream_.peer());
    } while (!bytes.empty());
    co_return ok();
  }

  Runtime& runtime_;
  rpc::ServerStream& stream_;
  SharedState* const state_;
  const std::shared_ptr<StateReader> reader_;
  std::string metadata_;
  ReaderPace pace_{runtime_};
};

/// The tensor whose chunks are arriving. Where its codec encodes values one by one, they are decoded into their final
/// place as they come; else the encoded tensor is kept until it is complete.
struct Assembly {
  codec::Tensor tensor;
  Encoding encoding;
  std::uint64_t count;      // of all its values
  std::uint64_t begun = 0;  // values that are there
  Bytes held{};             // encoded bytes that are not decoded yet

  std::uint64_t size() const { return count * codec::size_of(tensor.dtype); }

  /// May run on another thread.
  Result<> add(ByteView bytes) {
    if (encoding.width == 0) {
      held.insert(held.end(), bytes.begin(), bytes.end());
      return ok();
    }
    if (bytes.size() > (count - begun) * encoding.width - held.size())
      return Error(cohive::Errc::malformed, "a tensor of more bytes than its shape has room for");
    if (!held.empty()) {  // a value that was cut in two
      const std::size_t missing = std::min(encoding.width - held.size(), bytes.size());
      held.insert(held.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(missing));
      bytes = bytes.subspan(missing);
      if (held.size() < encoding.width) return ok();
      if (auto decoded = decode(std::exchange(held, {})); !decoded) return decoded;
    }
    const std::size_t whole = bytes.size() / encoding.width * encoding.width;
    held.assign(bytes.begin() + static_cast<std::ptrdiff_t>(whole), bytes.end());
    return decode(bytes.first(whole));
  }
  Result<> decode(ByteView bytes) {
    const std::size_t values = bytes.size() / encoding.width;
    std::uint8_t* out = tensor.data.mutable_data() + begun * codec::size_of(tensor.dtype);
    begun += values;
    return decode_into(out, encoding.codec, tensor.dtype, values, bytes);
  }
  Result<codec::Tensor> finish() {
    if (encoding.width == 0)
      return codec::decode_tensor(encoding.codec, tensor.dtype, tensor.shape, tensor.requires_grad, held);
    if (begun != count || !held.empty())
      return Error(cohive::Errc::end_of_stream, "a tensor of fewer bytes than its shape needs");  // its donor has ended
    return std::move(tensor);
  }
};

class StateReceiver {
 public:
  /// \param room  bytes that the path from the donor carries
  StateReceiver(Runtime& runtime, PeerId donor, std::uint64_t max_bytes, std::uint64_t room, DownloadReport& report)
      : runtime_(runtime), donor_(donor), max_bytes_(max_bytes), room_(room), report_(report) {}

  Task<Result<>> take(Slice record) {
    auto message = parse_download(record);
    if (!message) co_return message.error();
    if (!message->metadata.empty()) metadata_ = std::move(message->metadata);
    if (metadata_.size() > kMaxMetadata) co_return Error(cohive::Errc::limit_exceeded, "metadata of a state");
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
    report_.contributed[donor_] = received_;
    auto work = [current = current_, record = std::move(record), bytes] { return current->add(bytes); };
    auto added = bytes.size() > kInlineBytes ? co_await runtime_.offload(std::move(work)) : work();
    report_.progress.bytes_done = finished_bytes_ + current_->begun * codec::size_of(current_->tensor.dtype);
    report_.changed();
    co_return added;
  }

  Task<Result<DownloadedState>> finish() {
    if (auto finished = co_await finish_tensor(); !finished) co_return finished.error();
    const Error nothing(Errc::no_donor, "it did not send its state");
    if (metadata_.empty()) co_return nothing;
    auto decoded = co_await runtime_.offload([text = metadata_] { return msgpack::decode(as_bytes(text)); });
    if (!decoded) co_return decoded.error();
    if (!decoded->truthy()) co_return nothing;
    DownloadedState state;
    state.metadata = std::move(*decoded);
    state.tensors = std::move(tensors_);
    co_return state;
  }

 private:
  /// What the tensor will take when decoded is checked before any of it is kept.
  Result<> begin_tensor(const TensorView& is) {
    const auto dtype = codec::dtype_from_name(is.dtype);
    const auto count = codec::element_count(is.shape);
    const auto codec = codec::codec_from_wire(is.compression);
    if (!dtype || !count || !codec) return Error(Errc::no_donor, "unknown codec, dtype or shape");  // of later versions
    if (tensors_.size() >= kMaxTensors) return Error(cohive::Errc::limit_exceeded, "tensors of a state");
    const std::uint64_t bytes = *count * codec::size_of(*dtype);
    if (bytes > max_bytes_ - std::min(max_bytes_, finished_bytes_))
      return Error(cohive::Errc::limit_exceeded, "state larger than allowed");
    const Encoding encoding(*codec, *dtype);
    announced_ += encoding.width ? *count * encoding.width : is.buffer.size() * static_cast<std::uint64_t>(is.chunks);
    if (announced_ > room_)
      return Error(Errc::narrow_path, "it carries " + std::to_string(room_) + " bytes, and the state has more");
    current_ = std::make_shared<Assembly>(Assembly{{*dtype, is.shape, is.requires_grad, {}}, encoding, *count});
    if (current_->encoding.width == 0) return ok();
    auto memory = memory_for(bytes);
    if (!memory) return memory.error();
    current_->tensor.data = std::move(*memory);
    return ok();
  }

  Task<Result<>> finish_tensor() {
    if (!current_) co_return ok();
    const bool large = current_->encoding.width == 0 && current_->size() > kInlineBytes;
    finished_bytes_ += current_->size();
    auto work = [assembly = std::exchange(current_, nullptr)] { return assembly->finish(); };
    auto tensor = large ? co_await runtime_.offload(std::move(work)) : work();
    if (!tensor) co_return tensor.error();
    tensors_.push_back(std::move(*tensor));
    co_return ok();
  }

  Runtime& runtime_;
  const PeerId donor_;
  const std::uint64_t max_bytes_, room_;
  DownloadReport& report_;
  std::string metadata_;
  std::vector<codec::Tensor> tensors_;
  std::uint64_t received_ = 0, announced_ = 0, finished_bytes_ = 0;
  std::shared_ptr<Assembly> current_;  // shared with work on other threads
};

}  // namespace

Task<Result<>> read_state_request(Runtime& runtime, rpc::ServerStream& stream) {
  auto request = co_await stream.receive(runtime.after(kSendTimeout));
  if (!request) co_return request.error();
  if (!*request) co_return Error(cohive::Errc::malformed, stream.peer(), "no request");
  co_return ok();
}

Task<Result<>> send_state(Runtime& runtime, rpc::ServerStream& stream, std::optional<SharedState> state,
                          codec::Compression compression) {
  if (!state) co_return ok();
  if (!state->infos.empty() && state->infos.size() != state->tensors.size())
    co_return Error(Errc::bad_state, "infos and tensors differ in number");
  StateSender sender(runtime, stream, *state);
  for (std::size_t i = 0; i < state->tensors.size(); ++i) {
    const auto codec = codec_of(*state, i, compression);
    if (!codec) co_return codec.error();
    auto sent = co_await sender.send(i, *codec);
    if (!sent) co_return sent;
  }
  co_return ok();
}

Task<Result<>> find_room(p2p::Host& host, PeerId donor, std::uint64_t bytes) {
  auto room = co_await host.ensure_capacity(donor, bytes, p2p::Transfer::from_peer, host.runtime().after(kRoomTime));
  // The donor has done nothing wrong, as it would have by sending too much.
  if (!room && room.error() == cohive::Errc::limit_exceeded)
    co_return Error(Errc::narrow_path, donor, std::to_string(bytes) + " bytes are missing");
  co_return room;
}

Error not_asked(const Error& error) {
  return error == cohive::Errc::limit_exceeded ? Error(Errc::narrow_path, "it does not carry a request") : error;
}

Task<Result<DownloadedState>> receive_state(p2p::Host& host, PeerId donor, std::string protocol, Duration chunk_timeout,
                                            std::uint64_t max_bytes, DownloadReport& report) {
  Runtime& runtime = host.runtime();
  auto call = co_await rpc::open_call(host, donor, protocol, runtime.after(chunk_timeout));
  if (call && (*call)->receive_quota() < max_bytes) {
    call->reset();  // how much it is shows only as it comes: the best path there is has to do
    (void)co_await find_room(host, donor, max_bytes);
    call = co_await rpc::open_call(host, donor, std::move(protocol), runtime.after(chunk_timeout));
  }
  if (!call) co_return not_asked(call.error());
  if (auto sent = co_await (*call)->send(ByteView(), runtime.after(chunk_timeout)); !sent)
    co_return not_asked(sent.error());
  if (auto ended = co_await (*call)->finish(runtime.after(chunk_timeout)); !ended) co_return not_asked(ended.error());

  StateReceiver receiver(runtime, donor, max_bytes, (*call)->receive_quota(), report);
  for (;;) {
    auto record = co_await (*call)->receive(runtime.after(chunk_timeout));
    if (!record) co_return record.error();
    if (!*record) break;
    if (auto taken = co_await receiver.take(std::move(**record)); !taken) co_return taken.error().with_peer(donor);
  }
  auto state = co_await receiver.finish();
  if (!state) co_return state.error().with_peer(donor);
  co_return state;
}

}  // namespace cohive::averaging
