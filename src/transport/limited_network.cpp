// Caps on what a process sends and receives, over all its connections: a network around another one. A connection
// writes a little at its turn, and what it has read is handed on at its turn, so that TCP slows the sender down.
#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/transport/network.hpp"
#include "pacer.hpp"

namespace cohive::transport {
namespace {

constexpr Duration kWriteTimeout = 10s;  // of a piece whose turn has come

struct Pacers {
  std::unique_ptr<Pacer> upload, download;  // null: no limit
};

std::unique_ptr<Pacer> make_pacer(Runtime& runtime, double rate) {
  return rate > 0 ? std::make_unique<Pacer>(runtime, rate) : nullptr;
}

class LimitedConnection final : public RawConnection {
 public:
  LimitedConnection(Runtime& runtime, std::unique_ptr<RawConnection> inner, std::shared_ptr<Pacers> pacers)
      : runtime_(runtime), pacers_(std::move(pacers)), inner_(std::move(inner)) {
    if (pacers_->upload) upload_.emplace(*pacers_->upload);
    if (pacers_->download) download_.emplace(*pacers_->download);
  }
  ~LimitedConnection() override { close(); }

  Task<Result<std::size_t>> read_some(MutableBytes into) override {
    if (!download_) co_return co_await inner_->read_some(into);
    auto count = co_await inner_->read_some(into.first(std::min(into.size(), pacers_->download->quantum())));
    if (!count || *count == 0) co_return count;
    if (!co_await download_->turn(*count)) co_return closed();
    co_return count;
  }

  Task<Result<>> write_all(std::span<const ByteView> buffers) override {
    if (!upload_) co_return co_await inner_->write_all(buffers);
    std::vector<ByteView> piece;
    std::size_t room = pacers_->upload->quantum();
    for (ByteView buffer : buffers) {
      while (!buffer.empty()) {
        const std::size_t size = std::min(room, buffer.size());
        piece.push_back(buffer.first(size));
        buffer = buffer.subspan(size);
        room -= size;
        if (room > 0) continue;
        if (auto written = co_await write_piece(piece); !written) co_return written;
        piece.clear();
        room = pacers_->upload->quantum();
      }
    }
    if (piece.empty()) co_return ok();
    co_return co_await write_piece(piece);
  }

  void end_writing() noexcept override { inner_->end_writing(); }
  void close() noexcept override {
    inner_->close();
    if (upload_) upload_->end();
    if (download_) download_->end();
  }
  const Multiaddr& local_address() const override { return inner_->local_address(); }
  const Multiaddr& remote_address() const override { return inner_->remote_address(); }
  Task<void> wait_readable() override { return inner_->wait_readable(); }
  bool has_own_write_timeout() const override { return upload_.has_value(); }
  std::size_t undelivered() const override { return inner_->undelivered(); }
  PathState path() const override { return inner_->path(); }
  void set_congestion_control(const std::string& name) noexcept override { inner_->set_congestion_control(name); }

 private:
  Task<Result<>> write_piece(std::span<const ByteView> piece) {
    std::size_t size = 0;
    for (ByteView buffer : piece) size += buffer.size();
    if (!co_await upload_->turn(size)) co_return closed();
    co_return co_await within(runtime_, runtime_.after(kWriteTimeout), inner_->write_all(piece),
                              "writing to the connection");
  }
  Error closed() const { return Error(cohive::Errc::closed, remote_address().text()); }

  Runtime& runtime_;
  std::shared_ptr<Pacers> pacers_;
  std::unique_ptr<RawConnection> inner_;
  std::optional<Pacer::Flow> upload_, download_;
};

class LimitedListener final : public Listener {
 public:
  LimitedListener(Runtime& runtime, std::unique_ptr<Listener> inner, std::shared_ptr<Pacers> pacers)
      : runtime_(runtime), inner_(std::move(inner)), pacers_(std::move(pacers)) {}
  Task<Result<std::unique_ptr<RawConnection>>> accept() override {
    auto connection = co_await inner_->accept();
    if (!connection) co_return connection;
    co_return std::make_unique<LimitedConnection>(runtime_, std::move(*connection), pacers_);
  }
  const Multiaddr& address() const override { return inner_->address(); }
  std::vector<Multiaddr> dialable_addresses() const override { return inner_->dialable_addresses(); }
  void close() noexcept override { inner_->close(); }

 private:
  Runtime& runtime_;
  std::unique_ptr<Listener> inner_;
  std::shared_ptr<Pacers> pacers_;
};

class LimitedNetwork final : public Network {
 public:
  LimitedNetwork(std::unique_ptr<Network> inner, BandwidthLimits limits)
      : inner_(std::move(inner)),
        limits_(limits),
        pacers_(std::make_shared<Pacers>(
            Pacers{make_pacer(inner_->runtime(), limits.upload), make_pacer(inner_->runtime(), limits.download)})) {}
  Runtime& runtime() override { return inner_->runtime(); }
  BandwidthLimits limits() const override { return limits_; }
  std::size_t max_connections() const override { return inner_->max_connections(); }

  Result<std::unique_ptr<Listener>> listen(const Multiaddr& address) override {
    auto listener = inner_->listen(address);
    if (!listener) return listener;
    return std::unique_ptr<Listener>(std::make_unique<LimitedListener>(runtime(), std::move(*listener), pacers_));
  }
  using Network::dial;
  Task<Result<std::unique_ptr<RawConnection>>> dial(Multiaddr address, std::optional<Multiaddr> from,
                                                    Deadline deadline) override {
    auto connection = co_await inner_->dial(std::move(address), std::move(from), deadline);
    if (!connection) co_return connection;
    co_return std::make_unique<LimitedConnection>(runtime(), std::move(*connection), pacers_);
  }

 private:
  std::unique_ptr<Network> inner_;
  BandwidthLimits limits_;
  std::shared_ptr<Pacers> pacers_;
};

}  // namespace

std::unique_ptr<Network> limit_bandwidth(std::unique_ptr<Network> network, BandwidthLimits limits) {
  if (limits.upload <= 0 && limits.download <= 0) return network;
  return std::make_unique<LimitedNetwork>(std::move(network), limits);
}

}  // namespace cohive::transport
