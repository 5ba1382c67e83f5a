// Noise_XX_25519_ChaChaPoly_SHA256 with libp2p's payload. Two cohive peers whose processors have AES say so in their
// payloads, which the handshake authenticates, and use it for the records behind the handshake.
//   -> e;  <- e, ee, s, es, payload;  -> s, se, payload.  Each message: 2-byte big-endian length, then the bytes.
// Source: docs/wire/libp2p.md, section 3.1.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohive/core/crypto.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/transport/transport.hpp"

namespace cohive::transport {

/// An identity prepared for handshakes: its signature of a static key, which serves all connections of a process.
struct NoiseIdentity {
  explicit NoiseIdentity(const KeyPair& identity, crypto::X25519KeyPair key = crypto::X25519KeyPair::generate());
  crypto::X25519KeyPair static_key;
  std::string public_key;  ///< serialised
  Bytes signature;
};

/// What is agreed on beside the keys.
struct NoiseOffer {
  std::vector<std::string> muxers;
  bool aes = false;  ///< use it if the peer offers it too
};

/// What a handshake yields.
struct NoiseSession {
  PublicKey remote_key;
  Role role;  ///< the one played: initiator or responder
  crypto::Key32 send_key;
  crypto::Key32 receive_key;
  crypto::Sha256Digest handshake_hash;
  std::string muxer;  ///< agreed through the extension; empty: negotiate it inside the channel
  crypto::Cipher cipher = crypto::Cipher::chacha20_poly1305;  ///< of the records
};

/// `stream` is the raw connection. `ephemeral` is given by tests only.
///
/// When two peers dial each other at the same moment from the ports they listen on, TCP gives them one connection that
/// both opened, and both begin. With Role::either, a peer that then sees a first message where the second one should be
/// answers it as a responder does if its own ephemeral key is the larger one. Other implementations fail such a
/// handshake.
Task<Result<NoiseSession>> noise_handshake(Stream& stream, Role role, std::shared_ptr<const NoiseIdentity> identity,
                                           std::optional<PeerId> expected, NoiseOffer offer, Deadline deadline,
                                           crypto::X25519KeyPair ephemeral = crypto::X25519KeyPair::generate());

}  // namespace cohive::transport
