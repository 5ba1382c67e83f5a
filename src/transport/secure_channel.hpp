// The encrypted side of a byte connection, below the muxer: bytes in, as slices; bytes out, through a queue of blocks.
// Noise's records are one implementation (noise_channel.hpp), TLS another (tls_channel.hpp).
#pragma once

#include <functional>
#include <list>

#include "cohive/core/errors.hpp"
#include "cohive/transport/network.hpp"

namespace cohive::transport {

inline constexpr std::size_t kMinRead = 4 * 1024;     // of a channel's reads from the network
inline constexpr std::size_t kReadTurn = 128 * 1024;  // a peer that sends without pause does not starve other tasks

class SecureChannel {
 public:
  explicit SecureChannel(std::unique_ptr<RawConnection> raw) : raw_(std::move(raw)) {}
  virtual ~SecureChannel() = default;

  /// The next decrypted bytes; empty at the end of the connection.
  virtual Task<Result<Slice>> receive() = 0;
  /// Asked about large records, of which it sees the first bytes and how many there are: memory for all but its first
  /// few bytes (at most crypto::Aead::kFirst), which are handed out by themselves before; empty for none. The record
  /// may still turn out to be forged: then that memory holds nothing. A channel need not ask.
  using Place = std::function<Slice(ByteView first, std::size_t size)>;
  virtual void place_with(Place) {}
  /// Decrypted bytes to hand out again first.
  void unread(Slice bytes) { unread_ = std::move(bytes); }

  /// Tells whether it has keys, which wear out.
  virtual bool encrypts() const noexcept = 0;
  /// Encrypts the parts (at most kMaxAppend bytes together) behind what is queued. Never waits.
  virtual void append(std::span<const ByteView> parts) = 0;
  static constexpr std::size_t kMaxAppend = 65519;  ///< what one record of Noise carries
  std::size_t queued() const noexcept { return queued_; }
  /// Writes the oldest queued bytes, one block or more; on return they have been handed to the network.
  Task<Result<>> flush();

  void close() noexcept { raw_->close(); }
  RawConnection& raw() noexcept { return *raw_; }
  std::uint64_t bytes_in() const noexcept { return bytes_in_; }
  std::uint64_t bytes_out() const noexcept { return bytes_out_; }

 protected:
  /// Room for so many more bytes at the end of the queue.
  std::uint8_t* extend(std::size_t size);

  std::unique_ptr<RawConnection> raw_;
  Slice unread_;
  std::uint64_t bytes_in_ = 0;

 private:
  struct Output {
    Slice block;
    std::size_t used = 0;
  };
  std::list<Output> output_;  // holds no memory while empty, as most connections are
  std::size_t queued_ = 0;
  std::uint64_t bytes_out_ = 0;
};

}  // namespace cohive::transport
