// Noise_XX_25519_ChaChaPoly_SHA256 with libp2p's payload. Two cohive peers whose processors have AES say so in their
// payloads, which the handshake authenticates, and use it for the records behind the handshake.
//   -> e;  <- e, ee, s, es, payload;  -> s, se, payload.  Each message: 2-byte big-endian length, then the bytes.
// Source: libp2p wire spec, section 3.1.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohive/core/crypto.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/transport/upgrade.hpp"

namespace cohive::transport {

inline constexpr std::size_t kNoiseMaxPlaintext = 65535 - crypto::Aead::kTagSize;

struct NoiseKeys {
  crypto::X25519KeyPair static_key = crypto::X25519KeyPair::generate();
  crypto::X25519KeyPair ephemeral = crypto::X25519KeyPair::generate();
};

/// What a handshake yields.
struct NoiseSession {
  PublicKey remote_key;
  crypto::Key32 send_key;
  crypto::Key32 receive_key;
  crypto::Sha256Digest handshake_hash;
  std::string muxer;  ///< agreed through the extension; empty: negotiate it inside the channel
  crypto::Cipher cipher = crypto::Cipher::chacha20_poly1305;  ///< of the records
};

/// `stream` is the raw connection. `offer_aes`: AES is used if the peer offers it too. `keys` is given by tests only.
Task<Result<NoiseSession>> noise_handshake(Stream& stream, Role role, KeyPair identity, std::optional<PeerId> expected,
                                           std::vector<std::string> muxers, Deadline deadline, NoiseKeys keys = {},
                                           bool offer_aes = false);

}  // namespace cohive::transport
