#include "cohive/averaging/state_sharing.hpp"

#include <stdexcept>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/names.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/dht/schema.hpp"
#include "dht/detail/later_expiration.hpp"
#include "donors.hpp"
#include "repeated_downloads.hpp"
#include "uploads.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kChunkTimeout = 15s;
constexpr std::size_t kMaxUploads = 4;

StateSharingOptions checked(StateSharingOptions options) {
  const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
  if (const auto fault = fault_of_name(options.prefix, kMaxPrefix)) fail("the prefix of shared states " + *fault);
  for (const auto& choice : options.codec.choices())
    if (codec::info(choice.codec).needs_agreement) fail("StateSharingOptions::codec must need no agreement");
  return options;
}

}  // namespace

struct StateSharing::Impl {
  Impl(Dht& d, StateSharingOptions o)
      : dht(d),
        runtime(d.runtime()),
        options(checked(std::move(o))),
        base(options.prefix + "::" + options.class_name + "."),
        declared_under(options.prefix + ".all_averagers"),
        metrics(runtime.metrics(), options.prefix),
        changed(runtime, "shared state"),
        uploads(d.host(), kMaxUploads),
        repeated(runtime),
        snapshots(runtime, options.codec),
        server(d.host()),
        tasks(runtime, "state sharing") {
    // A plain value under the key would take the place of what all donors say.
    dht.add_validator(std::make_shared<dht::SchemaValidator>(dht::dictionary_schema(declared_under)));
  }

  static Task<void> declare(Impl& self);
  Task<Result<>> serve_whole(rpc::ServerStream& stream);
  Task<Result<>> serve_in_pieces(rpc::ServerStream& stream);
  void show(const DownloadProgress& progress);

  Dht& dht;
  Runtime& runtime;
  const StateSharingOptions options;
  const std::string base, declared_under;
  StateMetrics metrics;
  double priority = 0;
  Condition changed;          // provider or priority
  std::uint64_t changes = 0;  // of these
  Uploads uploads;            // of either protocol
  RepeatedDownloads repeated;
  Snapshots snapshots;
  rpc::Server server;
  TaskGroup tasks;
};

StateSharing::StateSharing(Dht& dht, StateSharingOptions options)
    : impl_(std::make_unique<Impl>(dht, std::move(options))) {}
StateSharing::~StateSharing() = default;

void StateSharing::start() {
  Impl& self = *impl_;
  if (!self.options.share) return;
  self.server.add_streaming(self.base + "rpc_download_state",
                            [&self](rpc::ServerStream& stream) { return self.serve_whole(stream); });
  self.server.add_streaming(self.base + "rpc_download_pieces",
                            [&self](rpc::ServerStream& stream) { return self.serve_in_pieces(stream); });
  self.tasks.spawn(Impl::declare(self), "declare state");
}

void StateSharing::set_provider(Provider provider) {
  if (!provider) return set_async_provider(nullptr);
  set_async_provider([&runtime = impl_->runtime, provider = std::move(provider)] {
    return [](Runtime& loop, Provider work) -> Task<std::optional<SharedState>> {
      co_return co_await loop.offload(std::move(work));
    }(runtime, provider);
  });
}

void StateSharing::set_async_provider(AsyncProvider provider) {
  impl_->snapshots.set_provider(std::move(provider));
  ++impl_->changes;
  impl_->changed.notify_all();
}

void StateSharing::set_priority(double priority) {
  impl_->priority = priority;
  ++impl_->changes;
  impl_->changed.notify_all();
}

/// Declared again in time, and at once when something changes.
Task<void> StateSharing::Impl::declare(Impl& self) {
  const msgpack::Value own = msgpack::Value::bin(self.dht.host().id().bytes());
  double newest = 0;
  for (;;) {
    const std::uint64_t declared = self.changes;
    const double expiration = dht::later_expiration(self.dht.now() + to_seconds(self.options.declare_period), newest);
    const auto said = self.snapshots.sharing() ? msgpack::Value(self.priority) : msgpack::Value();
    (void)co_await self.dht.store(self.declared_under, own, said, expiration);
    const Deadline again = self.runtime.after(self.options.declare_period * 2 / 3);
    while (self.changes == declared)
      if (!co_await self.changed.wait(again)) break;
  }
}

Task<Result<>> StateSharing::Impl::serve_whole(rpc::ServerStream& stream) {
  if (auto asked = co_await read_state_request(runtime, stream); !asked) co_return asked;
  const auto slot = co_await uploads.acquire(stream.peer(), runtime.after(kUploadTurn));
  if (!slot) co_return Error(cohive::Errc::limit_exceeded, "too many downloads at once");
  metrics.uploads.increment();
  const double epoch = priority;
  const bool refused = repeated.asks(stream.peer(), epoch);
  auto state = co_await snapshots.state();
  if (!state) co_return co_await send_state(runtime, stream, std::nullopt, options.codec);
  const auto ended = on_exit([this, reader = state->reader]() mutable { snapshots.give_back(std::move(reader)); });
  if (refused && state->if_refused) {
    log::info("averaging", "{} refuses our state: it is given that of {}", stream.peer(), state->if_refused->whose);
    state->metadata = std::move(state->if_refused->metadata);
  }
  auto sent = co_await send_state(runtime, stream, std::move(state), options.codec);
  if (sent) repeated.took(stream.peer(), epoch);
  co_return sent;
}

Task<Result<>> StateSharing::Impl::serve_in_pieces(rpc::ServerStream& stream) {
  bool whole = false;
  const auto noted = on_exit([this, &whole, peer = stream.peer(), epoch = priority] {  // the client drops the call
    if (!whole) return;
    (void)repeated.asks(peer, epoch);
    repeated.took(peer, epoch);
  });
  co_return co_await serve_pieces(runtime, stream, snapshots, uploads, metrics, whole);
}

void StateSharing::Impl::show(const DownloadProgress& progress) {
  metrics.download_done.set(static_cast<double>(progress.bytes_done));
  metrics.download_total.set(static_cast<double>(progress.bytes_total));
  metrics.download_donors.set(static_cast<double>(progress.donors));
}

Task<Result<DownloadedState>> StateSharing::download(DownloadOptions options) {
  Impl& self = *impl_;
  const PieceSource pieces{self.base + "rpc_download_pieces", kChunkTimeout, options.max_bytes, options.max_donors,
                           std::move(options.alike)};
  const DownloadSetup setup{self.declared_under,
                            self.base + "rpc_download_state",
                            pieces,
                            options.max_priority,
                            options.min_priority,
                            std::move(options.without),
                            std::move(options.asleep),
                            std::move(options.known),
                            std::move(options.last)};
  DownloadReport report;
  report.on_progress = [&self, &options](const DownloadProgress& progress) {
    self.show(progress);
    if (options.on_progress) options.on_progress(progress);
  };
  auto state = co_await download_from_donors(self.dht, setup, report, self.runtime.after(options.limit));
  if (state) self.metrics.downloads.increment();
  self.metrics.donors_rejected.increment(static_cast<double>(report.liars.size()));
  for (const PeerId& liar : report.liars) self.dht.host().reputation().report(liar, p2p::Offence::lied);
  for (const auto& [peer, bytes] : report.contributed)
    self.metrics.bytes_received.increment(static_cast<double>(bytes));
  self.metrics.download_donors.set(0);
  co_return state;
}

Task<Result<StateComparison>> StateSharing::compare(PeerId peer, SharedState ours, std::size_t tensors) {
  Impl& self = *impl_;
  return compare_with(self.dht.host(), peer, self.base + "rpc_download_pieces", kChunkTimeout,
                      std::make_shared<const SharedState>(std::move(ours)), tensors);
}

}  // namespace cohive::averaging
