// The client's side of state_pieces.hpp.
#include <algorithm>
#include <deque>

#include "averaging/tensors/decode_into.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/transport/errors.hpp"
#include "state_pieces.hpp"
#include "state_transfer.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kMaxPreparing = 24;       // messages that ask for patience, five seconds apart
constexpr std::size_t kFewest = 2, kMost = 64;  // pieces asked ahead of one donor
constexpr Duration kHelpTime = 3s;
constexpr double kHashedPerSecond = 256e6;   // bytes, by a donor that has much else to do
constexpr std::size_t kChecks = 4;           // pieces of one donor that are checked while the next ones arrive
constexpr std::size_t kVerifiedAtOnce = 32;  // pieces: about three milliseconds, as other work uses the pool too
constexpr std::size_t kLargestPiece = 2 * kPieceBytes + 4096;  // encoded: bfloat16 travels as float32; code books

Error not_cohive(const PeerId& donor) {
  return Error(transport::Errc::protocol_not_supported, donor, "its state has no manifest");
}

Task<Result<ManifestHead>> receive_head(Runtime& runtime, rpc::ClientStream& call, Duration timeout) {
  for (std::size_t i = 0; i < kMaxPreparing; ++i) {
    auto record = co_await call.receive(runtime.after(timeout));
    if (!record) co_return record.error();
    if (!*record) co_return Error(Errc::no_donor, call.peer(), "it did not send its state");
    auto head = parse_manifest_head(**record);
    if (!head) co_return head.error().with_peer(call.peer());
    if (!head->root.empty()) co_return head;
  }
  co_return Error(cohive::Errc::timeout, call.peer(), "preparing its state");
}

/// Memory grows with what has arrived, not with what was announced.
Task<Result<Manifest>> receive_manifest(Runtime& runtime, rpc::ClientStream& call, ManifestHead head, Duration timeout,
                                        std::uint64_t max_bytes) {
  // One that has more to say sends none.
  if (head.size > kMaxManifestBytes) co_return Error(cohive::Errc::malformed, "a manifest of too many bytes");
  auto bytes = std::make_shared<Bytes>();
  while (bytes->size() < head.size) {
    auto record = co_await call.receive(runtime.after(timeout));
    if (!record) co_return record.error();
    if (!*record) co_return Error(cohive::Errc::end_of_stream, "manifest cut off");
    const ByteView chunk = **record;
    if (chunk.empty() || chunk.size() > head.size - bytes->size())
      co_return Error(cohive::Errc::malformed, "a manifest of another size than announced");
    bytes->insert(bytes->end(), chunk.begin(), chunk.end());
  }
  co_return co_await runtime.offload([bytes, root = std::move(head.root), max_bytes]() -> Result<Manifest> {
    if (root_of(*bytes) != root) return Error(Errc::bad_state, "its manifest is not what its root says");
    return parse_manifest(*bytes, max_bytes);
  });
}

/// A piece in its place, to be hashed.
struct Stored {
  ManifestTensor is;
  Piece piece;
  codec::Tensor tensor;
  crypto::Sha256Digest hash;
  bool intact() const {
    const std::size_t size = codec::size_of(is.dtype);
    const auto bytes = encode_piece(tensor.data.sub(piece.first * size, piece.values * size), is, piece);
    return bytes && crypto::sha256(bytes->view()) == hash;
  }
};

/// A piece as it came: checked, unless it is taken on trust, decoded and put in its place.
struct Arrival {
  Slice record;
  ByteView data;  // within the record
  std::optional<crypto::Sha256Digest> hash;
  codec::Codec codec;
  codec::DType dtype;
  std::size_t values;
  Slice memory;  // of the tensor
  std::size_t offset;

  Result<> store() {
    if (hash && crypto::sha256(data) != *hash) return Error(Errc::bad_state, "a piece is not what its hash says");
    return decode_into(memory.mutable_data() + offset, codec, dtype, values, data);
  }
};

}  // namespace

bool shows_a_liar(const Error& error) {
  return error == cohive::Errc::malformed || error == Errc::bad_state;
}

Task<Result<DonorCall>> call_donor(p2p::Host& host, PeerId donor, std::string protocol, StateRoot wanted,
                                   Duration chunk_timeout, std::uint64_t max_bytes) {
  Runtime& runtime = host.runtime();
  auto call = co_await rpc::open_call(host, donor, std::move(protocol), runtime.after(chunk_timeout));
  if (!call) co_return not_asked(call.error());
  const std::string request = encode_manifest_request(wanted);
  if (auto sent = co_await (*call)->send(as_bytes(request), runtime.after(chunk_timeout)); !sent)
    co_return not_asked(sent.error());
  auto head = co_await receive_head(runtime, **call, chunk_timeout);
  if (!head) co_return head.error();
  if (head->size == 0) co_return not_cohive(donor);
  DonorCall result{std::move(*call), head->root, {}};
  if (!wanted.empty()) co_return result;
  auto manifest = co_await receive_manifest(runtime, *result.call, *head, chunk_timeout, max_bytes);
  if (!manifest) co_return manifest.error().with_peer(donor);
  result.manifest = std::move(*manifest);
  co_return result;
}

// ---- What has arrived

Task<void> PartialState::verify(Runtime& runtime) {
  while (!on_trust_.empty()) {
    const std::size_t kept = on_trust_.size() - std::min(on_trust_.size(), kVerifiedAtOnce);
    const std::vector<std::uint32_t> numbers(on_trust_.begin() + static_cast<std::ptrdiff_t>(kept), on_trust_.end());
    std::vector<Stored> batch;
    for (std::uint32_t number : numbers) {
      const Piece piece = manifest_.piece(number);
      const ManifestTensor& is = manifest_.tensors[piece.tensor];
      batch.push_back({is, piece, {is.dtype, is.shape, false, memory_[piece.tensor]}, manifest_.hashes[number]});
    }
    const auto intact = co_await runtime.offload([batch = std::move(batch)] {
      std::vector<bool> result;
      for (const Stored& one : batch) result.push_back(one.intact());
      return result;
    });
    on_trust_.resize(kept);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (intact[i]) continue;
      have_[numbers[i]] = false;
      ++missing_;
      bytes_ -= manifest_.bytes_of(manifest_.piece(numbers[i]));
    }
  }
}

bool PartialState::fits(const Manifest& manifest) const {
  if (manifest.tensors.size() < last_.size()) return false;
  const auto first = manifest.tensors.end() - static_cast<std::ptrdiff_t>(last_.size());
  return std::ranges::equal(std::ranges::subrange(first, manifest.tensors.end()), last_,
                            [](const ManifestTensor& is, const codec::Tensor& own) {
                              return is.dtype == own.dtype && is.shape == own.shape && is.bytes() == own.data.size();
                            });
}

std::uint64_t PartialState::wanted_of(const Manifest& manifest) const {
  if (last_.empty()) return manifest.bytes;
  std::uint64_t bytes = 0;
  for (const auto& own : last_) bytes += own.data.size();
  return bytes;
}

void PartialState::leave_out_what_is_not_wanted() {
  const std::size_t first = manifest_.tensors.size() - last_.size();
  const std::size_t end = first < manifest_.tensors.size() ? manifest_.tensors[first].first_piece : have_.size();
  for (std::size_t piece = 0; piece < end; ++piece) {
    missing_ -= have_[piece] ? 0 : 1;
    have_[piece] = true;
  }
}

/// What this peer has is believed to be what is wanted, until it is hashed. Cancellation: tensors that were not copied
/// are missing.
Task<void> PartialState::try_own_values(Runtime& runtime) {
  const std::size_t first = manifest_.tensors.size() - last_.size();
  for (std::size_t i = 0; i < last_.size(); ++i) {
    const ManifestTensor& is = manifest_.tensors[first + i];
    if (!memory_[first + i].empty() || !codec::info(is.codec).exact) continue;
    auto copy = co_await runtime.offload([own = last_[i].data] { return Slice::copy_of(own); });
    memory_[first + i] = std::move(copy);
    const std::size_t end = i + 1 < last_.size() ? manifest_.tensors[first + i + 1].first_piece : have_.size();
    for (std::size_t piece = is.first_piece; piece < end; ++piece) note(piece, true);
  }
}

Task<void> PartialState::adopt(Runtime& runtime, StateRoot root, Manifest manifest) {
  if (root == root_) co_return;
  begin(std::move(root), std::move(manifest));
  if (last_.empty()) co_return;
  leave_out_what_is_not_wanted();
  co_await try_own_values(runtime);
}

void PartialState::begin(StateRoot root, Manifest manifest) {
  std::vector<Slice> memory(manifest.tensors.size());
  std::vector<bool> have(manifest.hashes.size());
  missing_ = have.size();
  bytes_ = 0;
  const auto old = std::exchange(manifest_, std::move(manifest));
  const auto old_memory = std::exchange(memory_, std::move(memory));
  const auto old_have = std::exchange(have_, std::move(have));
  root_ = std::move(root);
  const std::size_t first = last_.empty() ? 0 : manifest_.tensors.size() - last_.size();
  for (std::size_t t = first; t < std::min(old.tensors.size(), manifest_.tensors.size()); ++t) {
    const ManifestTensor &was = old.tensors[t], &is = manifest_.tensors[t];
    if (was.dtype != is.dtype || was.shape != is.shape || was.codec != is.codec) continue;
    memory_[t] = old_memory[t];
    const std::size_t next = t + 1 < manifest_.tensors.size() ? manifest_.tensors[t + 1].first_piece : have_.size();
    for (std::size_t i = 0; is.first_piece + i < next; ++i)
      if (old_have[was.first_piece + i] && old.hashes[was.first_piece + i] == manifest_.hashes[is.first_piece + i])
        note(is.first_piece + i);
  }
}

Result<Slice> PartialState::memory_of(std::size_t piece) {
  const std::size_t tensor = manifest_.piece(piece).tensor;
  if (memory_[tensor].empty()) {
    auto memory = memory_for(manifest_.tensors[tensor].bytes());
    if (!memory) return memory;
    memory_[tensor] = std::move(*memory);
  }
  return memory_[tensor];
}

void PartialState::note(std::size_t piece, bool on_trust) {
  if (have_[piece]) return;
  if (on_trust) on_trust_.push_back(static_cast<std::uint32_t>(piece));
  have_[piece] = true;
  --missing_;
  bytes_ += manifest_.bytes_of(manifest_.piece(piece));
}

std::vector<codec::Tensor> PartialState::take() {
  std::vector<codec::Tensor> tensors;
  tensors.reserve(memory_.size());
  for (std::size_t t = 0; t < memory_.size(); ++t) {
    auto& is = manifest_.tensors[t];
    tensors.push_back({is.dtype, std::move(is.shape), is.requires_grad, std::move(memory_[t])});
  }
  *this = PartialState();
  return tensors;
}

// ---- Fetching

namespace {

/// Shares the missing pieces out among the donors. A donor with nothing left to send is asked again for what a slower
/// one is still to send, so that the last pieces come at the pace of the fastest.
class PieceFetch {
 public:
  PieceFetch(p2p::Host& host, const PieceSource& source, PartialState& partial, DownloadReport& report)
      : host_(host),
        runtime_(host.runtime()),
        source_(source),
        partial_(partial),
        report_(report),
        changed_(runtime_, "pieces of a state"),
        checking_(partial.manifest().hashes.size()),
        holders_(partial.manifest().hashes.size()),
        tasks_(runtime_, "download of a state") {
    for (std::uint32_t i = 0; i < holders_.size(); ++i)
      if (!partial.has(i)) unasked_.push_back(i);
  }

  Task<Result<>> run(DonorCall first, std::vector<PeerId> others) {
    alone_ = others.empty() && !source_.vouched;
    candidates_.assign(others.begin(), others.end());
    running_ = std::min(std::max<std::size_t>(source_.max_donors, 1), 1 + others.size());
    tasks_.spawn(first_donor(std::move(first)), "donor");
    for (std::size_t i = 1; i < running_; ++i) tasks_.spawn(other_donors(), "donor");
    while (!partial_.complete() && running_ > 0) {
      if (!workers_.empty() || !first_ended_)
        co_await changed_.wait();
      else if (!co_await changed_.wait(runtime_.after(time_of_help())) && workers_.empty())
        break;
    }
    tasks_.cancel();
    if (partial_.complete()) co_return ok();
    co_return last_;
  }

 private:
  struct Worker {
    PeerId peer;
    TimePoint start;
    std::vector<std::uint32_t> asked{};  // in the order of asking
    std::optional<Error> failure{};      // of a piece that has arrived
    std::size_t delivered = 0;
    double rate(TimePoint now) const {  // pieces a second
      return static_cast<double>(delivered) / std::max(to_seconds(now - start), 1e-3);
    }
  };
  /// Tells when a donor's task ends.
  struct Ending {
    PieceFetch& fetch;
    ~Ending() {
      --fetch.running_;
      fetch.changed_.notify_all();
    }
  };

  Task<void> first_donor(DonorCall call) {
    const Ending ending{*this};
    co_await finish(std::move(call));
    first_ended_ = true;
    changed_.notify_all();
    co_await ask_candidates();
  }
  Task<void> other_donors() {
    const Ending ending{*this};
    co_await ask_candidates();
  }

  /// For a donor to say that it holds the same bytes, which it hashes first, when none is left that does.
  Duration time_of_help() const {
    return kHelpTime + from_seconds(static_cast<double>(partial_.manifest().bytes) / kHashedPerSecond);
  }

  /// One after another, until the state is complete: donors with another state and donors that fail make room.
  Task<void> ask_candidates() {
    while (!candidates_.empty() && !partial_.complete()) {
      const PeerId peer = candidates_.front();
      candidates_.pop_front();
      auto call =
          co_await call_donor(host_, peer, source_.protocol, partial_.root(), source_.chunk_timeout, source_.max_bytes);
      if (call && call->root == partial_.root())
        co_await finish(std::move(*call));
      else if (!call)
        failed(peer, call.error());
    }
  }

  /// Takes what this donor has to give.
  Task<void> finish(DonorCall call) {
    const PeerId peer = call.call->peer();
    Worker worker{peer, runtime_.now()};
    workers_.push_back(&worker);
    ++report_.progress.donors;
    report_.changed();
    const auto left = on_exit([this, &worker] { leave(worker); });
    auto result = co_await take_pieces(worker, *call.call);
    if (!result) failed(peer, result.error());
  }

  void leave(Worker& worker) {
    std::erase(workers_, &worker);
    for (std::uint32_t piece : worker.asked) give_back(piece);
    --report_.progress.donors;
    changed_.notify_all();
  }
  /// A piece that this donor will not send.
  void give_back(std::uint32_t piece) {
    if (--holders_[piece] == 0 && !partial_.has(piece) && !checking_[piece]) unasked_.push_front(piece);
  }

  void failed(const PeerId& peer, const Error& error) {
    if (error == transport::Errc::protocol_not_supported) return;  // Python: shares its state as a whole
    last_ = error.peer() ? error : error.with_peer(peer);
    if (!shows_a_liar(error)) {
      log::info("averaging", "lost a donor of the state: {}", last_);
      return;
    }
    log::warn("averaging", "a donor of the state is left out: {}", last_);
    if (!report_.names(peer)) report_.liars.push_back(peer);
  }

  Task<Result<>> take_pieces(Worker& worker, rpc::ClientStream& call) {
    Semaphore room(runtime_, kChecks, "checks of pieces");
    Nursery checks(runtime_, "checks of pieces");
    auto result = co_await receive_pieces(worker, call, room, checks);
    co_await checks.join();
    if (worker.failure) co_return *worker.failure;
    co_return result;
  }

  Task<Result<>> receive_pieces(Worker& worker, rpc::ClientStream& call, Semaphore& room, TaskGroup& checks) {
    while (!partial_.complete() && !worker.failure) {
      if (auto asked = co_await ask_ahead(worker, call); !asked) co_return asked;
      if (worker.asked.empty()) {
        co_await changed_.wait();  // all that is missing is on its way from other donors, or being checked
        continue;
      }
      auto record = co_await call.receive(runtime_.after(source_.chunk_timeout));
      if (!record) co_return record.error();
      if (!*record) co_return Error(cohive::Errc::end_of_stream, call.peer(), "the donor ended before its pieces");
      auto units = co_await room.acquire();
      if (auto taken = take(worker, std::move(**record), std::move(units), checks); !taken) co_return taken;
    }
    co_return ok();
  }

  /// As many pieces as the donor sends in about a second.
  Task<Result<>> ask_ahead(Worker& worker, rpc::ClientStream& call) {
    const auto ahead = static_cast<std::size_t>(worker.rate(runtime_.now())) + kFewest;
    while (worker.asked.size() < std::min(ahead, kMost)) {
      const auto piece = next_piece(worker);
      if (!piece) break;
      worker.asked.push_back(*piece);
      ++holders_[*piece];
      const std::string request = encode_piece_request(*piece);
      auto sent = co_await call.send(as_bytes(request), runtime_.after(source_.chunk_timeout));
      if (!sent) co_return not_asked(sent.error());
    }
    co_return ok();
  }

  std::optional<std::uint32_t> next_piece(const Worker& worker) {
    while (!unasked_.empty()) {
      const std::uint32_t piece = unasked_.front();
      unasked_.pop_front();
      if (!partial_.has(piece) && !checking_[piece] && holders_[piece] == 0) return piece;
    }
    if (worker.asked.size() >= kFewest) return std::nullopt;
    // What the slowest will send last.
    const TimePoint now = runtime_.now();
    std::optional<std::uint32_t> best;
    double slowest = worker.rate(now);
    for (const Worker* other : workers_) {
      if (other == &worker || other->rate(now) > slowest) continue;
      for (auto piece = other->asked.rbegin(); piece != other->asked.rend(); ++piece) {
        if (partial_.has(*piece) || checking_[*piece] || holders_[*piece] > 1) continue;
        best = *piece;
        slowest = other->rate(now);
        break;
      }
    }
    return best;
  }

  Result<> take(Worker& worker, Slice record, Semaphore::Units room, TaskGroup& checks) {
    const auto message = parse_piece(record);
    if (!message) return message.error();
    const auto place = std::ranges::find(worker.asked, message->index);
    if (place == worker.asked.end() || message->data.size() > kLargestPiece)
      return Error(cohive::Errc::malformed, "a piece that was not asked for");
    const std::uint32_t index = *place;
    worker.asked.erase(place);
    ++worker.delivered;
    if (partial_.has(index) || checking_[index]) {
      --holders_[index];
    } else {
      checking_[index] = true;
      checks.spawn(check(worker, index, std::move(record), message->data, std::move(room)), "check");
    }
    return ok();
  }

  /// `room` is held until the piece is in its place or found to be wrong.
  Task<void> check(Worker& worker, std::uint32_t index, Slice record, ByteView data, Semaphore::Units room) {
    const std::size_t size = data.size();
    const bool on_trust =
        alone_ && codec::info(codec_of(index)).exact;  // its bytes can be made again, to be hashed later
    auto stored = co_await store(index, std::move(record), data, on_trust);
    room.release();
    checking_[index] = false;
    if (stored) {
      partial_.note(index, on_trust);
      report_.contributed[worker.peer] += size;
      report_.progress.bytes_done = partial_.bytes();
    } else {
      worker.failure = stored.error();
    }
    give_back(index);
    if (stored) report_.changed();
    if (!stored || partial_.complete()) changed_.notify_all();
  }

  codec::Codec codec_of(std::uint32_t index) const {
    return partial_.manifest().tensors[partial_.manifest().piece(index).tensor].codec;
  }

  Task<Result<>> store(std::uint32_t index, Slice record, ByteView data, bool on_trust) {
    const Manifest& manifest = partial_.manifest();
    const Piece piece = manifest.piece(index);
    const ManifestTensor& is = manifest.tensors[piece.tensor];
    auto memory = partial_.memory_of(index);
    if (!memory) co_return memory.error();
    const auto hash = on_trust ? std::nullopt : std::optional(manifest.hashes[index]);
    Arrival arrival{std::move(record),
                    data,
                    hash,
                    is.codec,
                    is.dtype,
                    piece.values,
                    std::move(*memory),
                    piece.first * codec::size_of(is.dtype)};
    if (on_trust) co_return arrival.store();  // hardly more than a copy
    co_return co_await runtime_.offload([arrival = std::move(arrival)]() mutable { return arrival.store(); });
  }

  p2p::Host& host_;
  Runtime& runtime_;
  const PieceSource& source_;
  PartialState& partial_;
  DownloadReport& report_;
  std::deque<PeerId> candidates_;
  std::deque<std::uint32_t> unasked_;
  Condition changed_;
  bool first_ended_ = false;
  bool alone_ = false;  // the donor that made the manifest is the only one, and nobody has vouched for it
  std::vector<bool> checking_;
  std::vector<std::uint8_t> holders_;  // donors that were asked for the piece
  std::vector<Worker*> workers_;
  std::size_t running_ = 0;
  Error last_{Errc::no_donor};
  Nursery tasks_;
};

}  // namespace

Task<Result<>> fetch_pieces(p2p::Host& host, DonorCall first, std::vector<PeerId> others, const PieceSource& source,
                            PartialState& partial, DownloadReport& report) {
  PieceFetch fetch(host, source, partial, report);
  co_return co_await fetch.run(std::move(first), std::move(others));
}

}  // namespace cohive::averaging
