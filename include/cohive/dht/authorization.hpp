/// \file
/// Moderated swarms: every DHT request and reply carries a token that the application gives out and checks, and is
/// signed with the token's key. A peer that has shown a valid one is a member: only members are averaged with, and
/// given states. Source: docs/wire/hivemind.md, section 4.5. Loop thread only. Ready ones: members.hpp.
#pragma once

#include <memory>
#include <string>

#include "cohive/core/peer_id.hpp"
#include "cohive/dht/validation.hpp"

namespace cohive::dht {

/// What it says is the application's business; on the wire it is hivemind's AccessToken.
struct AccessToken {
  std::string username;         ///< whom the token was given to
  std::string public_key;       ///< "ssh-rsa AAAA...": whose signatures the token stands for
  std::string expiration_time;  ///< text, in the format of the authority that gives tokens
  std::string signature;        ///< of that authority
};

/// Gives this node its token and judges the tokens of other nodes. An application derives from it.
class Authorizer {
 public:
  /// \param key  signs what this node sends
  explicit Authorizer(std::shared_ptr<const RsaSignatureValidator> key) : key_(std::move(key)) {}
  virtual ~Authorizer() = default;
  /// The token of this node, with the public key of key(). Asked for each message: keep it and renew it in time.
  virtual AccessToken token() = 0;
  /// \param sender  showed the token. A token that names no peer is good for whichever peer its requests are passed on
  /// by
  virtual bool is_valid(const AccessToken& token, const PeerId& sender) const = 0;

  /// Returns the key that signs what this node sends.
  const RsaSignatureValidator& key() const { return *key_; }

 private:
  std::shared_ptr<const RsaSignatureValidator> key_;
};

}  // namespace cohive::dht
