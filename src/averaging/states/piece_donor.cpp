// The donor's side of state_pieces.hpp.
#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "state_pieces.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kPieceSendTimeout = 30s;
constexpr Duration kRequestTimeout = 30s;  // the client asks ahead: between two requests it verifies at most
constexpr Duration kStillPreparing = 5s;   // below any client's patience
constexpr std::size_t kManifestChunk = 256 * 1024;
constexpr std::size_t kInlinePieceBytes = 64 * 1024;
constexpr int kHashers = 8;
constexpr std::size_t kHashedAtOnce = 32;  // pieces: about three milliseconds, as other work uses the pool too

/// Off the loop, unless the values travel as they are or are few.
Task<Result<Slice>> encode(Runtime& runtime, const Snapshot& snapshot, std::size_t index) {
  const Piece piece = snapshot.manifest->piece(index);
  const ManifestTensor& is = snapshot.manifest->tensors[piece.tensor];
  const bool as_it_is = codec::travels_as_it_is(is.codec, is.dtype);
  if (as_it_is || snapshot.manifest->bytes_of(piece) <= kInlinePieceBytes)
    co_return encode_piece(snapshot.state->tensors[piece.tensor], is, piece);
  co_return co_await runtime.offload([snapshot, piece] {
    return encode_piece(snapshot.state->tensors[piece.tensor], snapshot.manifest->tensors[piece.tensor], piece);
  });
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
  const std::size_t count = snapshot.pieces;
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
    sent_bytes.increment(static_cast<double>(bytes->size()));
    whole = served + 1 >= count;
    if (!pace.sent(bytes->size())) co_return Error(Errc::slow_reader, stream.peer());
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

Task<Result<Snapshot>> Snapshots::make() {
  auto provided = co_await state();
  if (!provided) co_return Snapshot();
  const std::uint64_t version = provided->version;
  auto shared = std::make_shared<const SharedState>(std::move(*provided));
  if (version == 0 || version != last_version_) {
    auto builder = std::make_shared<ManifestBuilder>(shared, compression_);
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
    last_ = co_await runtime_.offload([builder] {
      Manifest manifest = builder->take();
      Snapshot made;
      made.bytes = std::make_shared<const std::string>(encode_manifest(manifest));
      made.root = root_of(as_bytes(*made.bytes));
      made.pieces = std::exchange(manifest.hashes, {}).size();
      made.manifest = std::make_shared<const Manifest>(std::move(manifest));
      return made;
    });
    last_version_ = version;
  }
  Snapshot snapshot = last_;
  snapshot.state = std::move(shared);
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
  const Snapshot ours = std::move(**snapshot);
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
