// Noise's record layer: what is read comes out as slices of the receive buffer, decrypted in place; what is sent is
// encrypted straight from the caller's buffers into output blocks. Without keys it passes bytes through (simulations).
// Source: docs/wire/libp2p.md, section 3.1 (framing).
#pragma once

#include <optional>
#include <vector>

#include "cohive/core/crypto.hpp"
#include "secure_channel.hpp"

namespace cohive::transport {

class NoiseChannel final : public SecureChannel {
 public:
  struct Keys {
    crypto::Key32 send;
    crypto::Key32 receive;
    crypto::Cipher cipher = crypto::Cipher::chacha20_poly1305;
  };
  /// \param early  bytes received together with the handshake
  NoiseChannel(Runtime& runtime, std::unique_ptr<RawConnection> raw, std::optional<Keys> keys, Bytes early);

  Task<Result<Slice>> receive() override;
  void place_with(Place place) override { place_ = std::move(place); }
  bool encrypts() const noexcept override { return seal_.has_value(); }
  void append(std::span<const ByteView> parts) override;

 private:
  std::optional<Result<Slice>> next_record();
  std::optional<Slice> open_record(MutableBytes sealed);
  Task<Result<bool>> read_more();
  void reserve(std::size_t needed);
  void retire_input();
  void release_input();

  Runtime& runtime_;
  std::optional<crypto::Aead> seal_;
  std::optional<crypto::Aead> open_;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;

  Place place_;
  Slice placed_;           // of the record whose first bytes were handed out
  Slice input_;            // the whole receive block
  std::size_t begin_ = 0;  // unconsumed bytes in it: [begin_, end_)
  std::size_t end_ = 0;
  std::size_t read_size_;           // grows while reads fill it
  bool drained_ = true;             // the last read took all there was
  std::vector<Slice> used_inputs_;  // blocks that slices given out may still share; reused once they do not
  std::size_t turn_ = 0;            // bytes read since other tasks had their turn
};

}  // namespace cohive::transport
