// A circuit through a relay as a byte connection, on which the ordinary handshakes run. It knows what the relay still
// carries, so that nothing is begun that the relay would leave half done.
#pragma once

#include "cohive/p2p/relay.hpp"
#include "cohive/transport/network.hpp"
#include "cohive/transport/stream.hpp"

namespace cohive::p2p {

class CircuitConnection final : public transport::RawConnection {
 public:
  /// \param stream  to the relay, behind the last message of the protocol
  CircuitConnection(transport::StreamPtr stream, CircuitLimit limit, Multiaddr local, Multiaddr remote);
  ~CircuitConnection() override { CircuitConnection::close(); }

  Task<Result<std::size_t>> read_some(MutableBytes into) override;
  Task<Result<>> write_all(std::span<const ByteView> buffers) override;
  void end_writing() noexcept override;
  void close() noexcept override;
  const Multiaddr& local_address() const override { return local_; }
  const Multiaddr& remote_address() const override { return remote_; }
  bool has_own_write_timeout() const override { return true; }
  std::uint64_t send_quota() const override { return left_; }
  std::uint64_t receive_quota() const override { return to_come_; }

 private:
  transport::StreamPtr stream_;
  std::uint64_t left_, to_come_;  // bytes from us, and to us
  Multiaddr local_, remote_;
  bool closed_ = false;
};

}  // namespace cohive::p2p
