// The donor's side of state_pieces.hpp.
#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "state_pieces.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kPieceSendTimeout = 30s;
constexpr Duration kRequestTimeout = 30s;  // the client asks ahead: between two requests it verifies at most
constexpr Duration kStillPreparing = 5s;   // below any client's patience
constexpr std::size_t kManifestChunk = 256 * 1024;
constexpr std::size_t kInlinePieceBytes = 64 * 1024;
constexpr std::size_t kTried = 16;  // pieces that a client may ask for to compare donors, and once more
constexpr Duration kLookTime = 1s;  // a client on a fast line that only compares donors has left by then
constexpr int kHashers = 8;
constexpr std::size_t kHashedAtOnce = 32;  // pieces: about three milliseconds, as other work uses the pool too

/// Off the loop, unless the values travel as they are or are few. What the model still has is hashed once more: whoever
/// has written to it without a word would make a liar of this donor.
Task<Result<Slice>> encode(Runtime& runtime, const Snapshot& snapshot, std::size_t index) {
  const Piece piece = snapshot.manifest->piece(index);
  const ManifestTensor& is = snapshot.manifest->tensors[piece.tensor];
  const bool live = is_live(snapshot.reader.get(), piece.tensor);
  const bool as_it_is = codec::travels_as_it_is(is.codec, is.dtype);
  if (!live && (as_it_is || snapshot.manifest->bytes_of(piece) <= kInlinePieceBytes))
    co_return read_piece(*snapshot.state, nullptr, is, piece);
  auto bytes = co_await runtime.offload([snapshot, piece, index, live]() -> Result<Slice> {
    auto encoded = read_piece(*snapshot.state, snapshot.reader.get(), snapshot.manifest->tensors[piece.tensor], piece);
    if (!encoded || !live || crypto::sha256(encoded->view()) == snapshot.manifest->hashes[index]) return encoded;
    snapshot.reader->tensors()->spoil();
    return Error(Errc::state_changed);
  });
  co_return bytes;
}

/// The client has the piece.
void note_sent(const Snapshot& snapshot, std::size_t index) {
  const Piece piece = snapshot.manifest->piece(index);
  if (!is_live(snapshot.reader.get(), piece.tensor)) return;
  const std::size_t size = codec::size_of(snapshot.manifest->tensors[piece.tensor].dtype);
  snapshot.reader->done(piece.tensor, piece.first * size, piece.values * size);
}

Task<Result<>> send_manifest(Runtime& runtime, rpc::ServerStream& stream, const Snapshot& snapshot) {
  ByteView rest = as_bytes(*snapshot.bytes);
  while (!rest.empty()) {
    const ByteView chunk = rest.first(std::min(kManifestChunk, rest.size()));
    if (auto sent = co_await stream.send(chunk, runtime.after(kPieceSendTimeout)); !sent) co_return sent;
    rest = rest.subspan(chunk.size());
  }
  co_return ok();
}

/// Until the client has what it wants. No client needs a piece more than twice.
Task<Result<>> serve_requests(Runtime& runtime, rpc::ServerStream& stream, const Snapshot& snapshot, Counter sent_bytes,
                              bool& whole) {
  const std::size_t count = snapshot.manifest->hashes.size();
  ReaderPace pace(runtime);
  for (std::size_t served = 0;; ++served) {
    auto request = co_await stream.receive(runtime.after(kRequestTimeout));
    if (!request) co_return request.error();
    if (!*request) co_return ok();
    const auto piece = parse_piece(**request);
    if (!piece) co_return piece.error();
    if (piece->index >= count) co_return Error(cohive::Errc::malformed, "no such piece");
    if (served >= 2 * count) co_return Error(cohive::Errc::limit_exceeded, "requests for pieces");
    const auto index = static_cast<std::size_t>(piece->index);
    auto bytes = co_await encode(runtime, snapshot, index);
    if (!bytes) co_return bytes.error();
    const std::string head = piece_head(index, bytes->size());
    const ByteView parts[] = {as_bytes(head), bytes->view()};
    auto sent = co_await stream.send(std::span<const ByteView>(parts), runtime.after(kPieceSendTimeout));
    if (!sent) co_return sent;
    if (served >= kTried) note_sent(snapshot, index);
    sent_bytes.increment(static_cast<double>(bytes->size()));
    whole = served + 1 >= count;
    if (!pace.sent(bytes->size()) || holds_too_long(runtime, snapshot.reader.get()))
      co_return Error(Errc::slow_reader, stream.peer());
  }
}

/// One of several that hash at once, for the pool to have work on all its threads.
Task<Result<>> hash_pieces(Runtime& runtime, std::shared_ptr<ManifestBuilder> builder, std::size_t& next) {
  while (next < builder->pieces()) {
    const std::size_t first = next, count = std::min(kHashedAtOnce, builder->pieces() - first);
    next += count;
    auto hashed = co_await runtime.offload([builder, first, count] { return builder->hash(first, count); });
    if (!hashed) co_return hashed;
  }
  co_return ok();
}

}  // namespace

// ---- Snapshots

Task<std::optional<SharedState>> Snapshots::state() {
  if (!provider_) co_return std::nullopt;
  const auto provider = provider_;  // may be replaced meanwhile
  co_return co_await provider();
}

void Snapshots::give_back(std::shared_ptr<StateReader> reader) {
  if (!reader) return;
  tasks_.spawn(
      [](Runtime& runtime, std::shared_ptr<StateReader> last) -> Task<void> {
        co_await runtime.offload([last = std::move(last)]() mutable {
          last.reset();
          return true;
        });
      }(runtime_, std::move(reader)),
      "free what a reader has left");
}

Task<std::optional<Result<Snapshot>>> Snapshots::get(Deadline deadline) {
  if (!making_) {
    making_ = std::make_shared<Making>(runtime_);
    tasks_.spawn(make(*this, making_), "snapshot");
  }
  const auto making = making_;
  if (!co_await making->done.wait(deadline)) co_return std::nullopt;
  co_return making->result;
}

Task<void> Snapshots::make(Snapshots& self, std::shared_ptr<Making> making) {
  try {
    making->result = co_await self.make();
  } catch (const std::exception& error) {
    log::error("averaging", "the state cannot be shared: {}", error.what());
  }
  making->done.set();
  self.making_.reset();
}

/// Nobody has seen anything of a state that changes while it is hashed: it is not worth a copy, unless that happens
/// again and again.
Task<Result<Snapshot>> Snapshots::make() {
  auto made = co_await make(TimePoint::max());
  if (!made && made.error() == Errc::state_changed) made = co_await make(TimePoint::min());
  co_return made;
}

Task<Result<Snapshot>> Snapshots::make(TimePoint keep_from) {
  auto provided = co_await state();
  if (!provided) co_return Snapshot();
  if (provided->reader) provided->reader->keep_from(keep_from);
  const std::uint64_t version = provided->version;
  const std::shared_ptr<StateReader> reader = std::move(provided->reader);
  auto shared = std::make_shared<const SharedState>(std::move(*provided));
  if (version == 0 || version != last_version_) {
    auto builder = std::make_shared<ManifestBuilder>(shared, reader, compression_);
    for (;;) {
      auto more = co_await runtime_.offload([builder] { return builder->describe(); });
      if (!more) co_return more.error();
      if (!*more) break;
    }
    std::size_t next = 0;
    std::vector<Task<Result<>>> hashers;
    for (int i = 0; i < kHashers; ++i) hashers.push_back(hash_pieces(runtime_, builder, next));
    for (const auto& hashed : co_await when_all(runtime_, std::move(hashers)))
      if (!hashed) co_return hashed.error();
    if (reader && !reader->tensors()->check()) co_return Error(Errc::state_changed);
    last_ = co_await runtime_.offload([builder] {
      Manifest manifest = builder->take();
      Snapshot made;
      made.bytes = std::make_shared<const std::string>(encode_manifest(manifest));
      made.root = root_of(as_bytes(*made.bytes));
      made.manifest = std::make_shared<const Manifest>(std::move(manifest));
      return made;
    });
    last_version_ = version;
  }
  Snapshot snapshot = last_;
  snapshot.state = std::move(shared);
  snapshot.reader = reader;  // until each download has one of its own
  co_return snapshot;
}

// ---- One call

Task<Result<>> serve_pieces(Runtime& runtime, rpc::ServerStream& stream, Snapshots& snapshots, Uploads& uploads,
                            const StateMetrics& metrics, bool& whole) {
  auto request = co_await stream.receive(runtime.after(kRequestTimeout));
  if (!request) co_return request.error();
  if (!*request) co_return Error(cohive::Errc::malformed, stream.peer(), "no request");
  const auto wanted = parse_manifest_request(**request);
  if (!wanted) co_return wanted.error().with_peer(stream.peer());
  const auto slot = co_await uploads.acquire(stream.peer(), runtime.after(kUploadTurn));
  if (!slot) co_return Error(cohive::Errc::limit_exceeded, "too many downloads at once");

  std::optional<Result<Snapshot>> snapshot;
  while (!(snapshot = co_await snapshots.get(runtime.after(kStillPreparing)))) {
    const std::string preparing = encode_manifest_head({});
    auto sent = co_await stream.send(as_bytes(preparing), runtime.after(kPieceSendTimeout));
    if (!sent) co_return sent;
  }
  const bool too_large = *snapshot ? (*snapshot)->bytes && (*snapshot)->bytes->size() > kMaxManifestBytes
                                   : snapshot->error() == cohive::Errc::limit_exceeded;
  if (too_large) {
    const std::string none = encode_manifest_head({StateRoot(kRootSize, '\0'), 0});
    co_return co_await stream.send(as_bytes(none), runtime.after(kPieceSendTimeout));
  }
  if (!*snapshot) co_return snapshot->error();
  Snapshot ours = std::move(**snapshot);
  if (ours.reader) {
    ours.reader = std::make_shared<StateReader>(ours.reader->tensors());
    ours.reader->keep_from(runtime.now() + kLookTime);
  }
  const auto ended = on_exit([&] { snapshots.give_back(std::move(ours.reader)); });
  if (!ours.state || ours.state->tensors.empty()) co_return ok();
  const std::string head = encode_manifest_head({ours.root, ours.bytes->size()});
  if (auto sent = co_await stream.send(as_bytes(head), runtime.after(kPieceSendTimeout)); !sent) co_return sent;
  if (!wanted->empty() && *wanted != ours.root) co_return ok();
  metrics.uploads.increment();
  if (wanted->empty())
    if (auto sent = co_await send_manifest(runtime, stream, ours); !sent) co_return sent;
  co_return co_await serve_requests(runtime, stream, ours, metrics.bytes_sent, whole);
}

}  // namespace cohive::averaging
