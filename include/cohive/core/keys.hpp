/// \file
/// Identity keys: Ed25519 and RSA sign, secp256k1 and ECDSA only verify.
/// Source: docs/wire/libp2p.md, sections 1.3 to 1.5.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/result.hpp"

namespace cohive {

/// Kinds of identities, by their numbers on the wire.
enum class KeyType { rsa = 0, ed25519 = 1, secp256k1 = 2, ecdsa = 3 };

/// A libp2p public key. Immutable, cheap to copy, safe to share between threads.
class PublicKey {
 public:
  /// From a serialised PublicKey protobuf. RSA moduli outside 2048..8192 bits are refused.
  static Result<PublicKey> from_protobuf(ByteView serialised);
  /// Returns the kind of the key.
  KeyType type() const;
  /// Returns the serialised PublicKey protobuf.
  const std::string& protobuf() const;
  /// Returns the id of the peer that has this key.
  PeerId peer_id() const;
  /// Tells whether `signature` is that of `message` by the private half.
  bool verify(ByteView message, ByteView signature) const;

 private:
  friend class KeyPair;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// A private key with its public half. Immutable, cheap to copy, safe to share between threads.
class KeyPair {
 public:
  /// Makes a random Ed25519 key.
  static KeyPair generate_ed25519();
  /// Makes the Ed25519 key of a seed of 32 bytes. Throws std::invalid_argument for another length.
  static KeyPair ed25519_from_seed(ByteView seed32);
  /// Makes a random RSA key: tens of milliseconds for 2048 bits.
  static KeyPair generate_rsa(int bits = 2048);
  /// From a serialised PrivateKey protobuf: the content of a hivemind or go-libp2p identity file.
  static Result<KeyPair> from_protobuf(ByteView serialised);

  /// Returns the public half.
  const PublicKey& public_key() const;
  /// Returns the id of the peer that has this key.
  PeerId peer_id() const;
  /// Returns the serialised PrivateKey protobuf: keep it secret.
  std::string protobuf() const;
  /// libp2p signature: Ed25519, or RSA PKCS#1 v1.5 with SHA-256.
  Bytes sign(ByteView message) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// Reads an identity file, or creates one (mode 0400, written atomically) if it does not exist.
/// \param create_type key type of a new file; RSA files are the ones Python hivemind can check.
Result<KeyPair> load_or_create_identity(const std::filesystem::path& path, KeyType create_type = KeyType::ed25519);

/// An identity and the lock on its file, which no other process of this machine gets while a copy of this lives.
struct HeldIdentity {
  KeyPair key;                 ///< of the file
  std::shared_ptr<void> lock;  ///< on a file system without locks it keeps nobody out
};
/// The same for a peer that joins a swarm: two processes with one identity take each other's connections away.
/// Errc::in_use when another process, or another part of this one, holds the identity.
Result<HeldIdentity> hold_identity(const std::filesystem::path& path, KeyType create_type = KeyType::ed25519);

}  // namespace cohive
