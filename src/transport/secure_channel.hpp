// The encrypted record layer: what is read comes out as slices of the receive buffer, decrypted in place; what is sent
// is encrypted straight from the caller's buffers into output blocks. Without keys it passes bytes through
// (simulations). Source: libp2p wire spec, section 3.1 (framing).
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <vector>

#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/transport/network.hpp"
#include "noise.hpp"

namespace cohive::transport {

class SecureChannel {
 public:
  struct Keys {
    crypto::Key32 send;
    crypto::Key32 receive;
    crypto::Cipher cipher = crypto::Cipher::chacha20_poly1305;
  };
  /// \param early  bytes received together with the handshake
  SecureChannel(Runtime& runtime, std::unique_ptr<RawConnection> raw, std::optional<Keys> keys, Bytes early);

  /// The next decrypted bytes; empty at the end of the connection.
  Task<Result<Slice>> receive();
  /// Asked about each large record, of which it sees the first bytes and how many there are: memory for all but its
  /// first few bytes (at most crypto::Aead::kFirst), which are handed out by themselves before; empty for none.
  /// The record may still turn out to be forged: then that memory holds nothing.
  using Place = std::function<Slice(ByteView first, std::size_t size)>;
  void place_with(Place place) { place_ = std::move(place); }
  /// Decrypted bytes to hand out again first.
  void unread(Slice bytes) { unread_ = std::move(bytes); }

  /// Encrypts the parts (at most kNoiseMaxPlaintext bytes together) behind what is queued. Never waits.
  void append(std::span<const ByteView> parts);
  std::size_t queued() const noexcept { return queued_; }
  /// Writes the oldest queued bytes, one block or more; on return they have been handed to the network.
  Task<Result<>> flush();

  void close() noexcept { raw_->close(); }
  RawConnection& raw() noexcept { return *raw_; }
  std::uint64_t bytes_in() const noexcept { return bytes_in_; }
  std::uint64_t bytes_out() const noexcept { return bytes_out_; }

 private:
  std::optional<Result<Slice>> next_record();
  std::optional<Slice> open_record(MutableBytes sealed);
  Task<Result<bool>> read_more();
  void make_room(std::size_t needed);
  void retire_input();
  void release_input();

  Runtime& runtime_;
  std::unique_ptr<RawConnection> raw_;
  std::optional<crypto::Aead> seal_;
  std::optional<crypto::Aead> open_;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;

  Place place_;
  Slice placed_;  // of the record whose first bytes were handed out
  Slice unread_;
  Slice input_;            // the whole receive block
  std::size_t begin_ = 0;  // unconsumed bytes in it: [begin_, end_)
  std::size_t end_ = 0;
  std::size_t read_size_;           // grows while reads fill it
  bool drained_ = true;             // the last read took all there was
  std::vector<Slice> used_inputs_;  // blocks that slices given out may still share; reused once they do not
  std::size_t turn_ = 0;            // bytes read since others had their turn
  std::uint64_t bytes_in_ = 0;

  struct Output {
    Slice block;
    std::size_t used = 0;
  };
  std::list<Output> output_;  // holds no memory while empty, as most connections are
  std::size_t queued_ = 0;
  std::uint64_t bytes_out_ = 0;
};

}  // namespace cohive::transport
