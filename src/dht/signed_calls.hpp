// Requests and replies of a moderated swarm. `auth` is the first field of each message:
//   request: token, time, nonce, signature over the message without the signature
//   reply:   token, the request's nonce, signature likewise
// Source: docs/wire/hivemind.md, section 4.5.
#pragma once

#include <optional>
#include <unordered_map>

#include "cohive/core/runtime.hpp"
#include "cohive/dht/authorization.hpp"
#include "seen_nonces.hpp"

namespace cohive::dht {

class SignedCalls {
 public:
  SignedCalls(Runtime& runtime, std::shared_ptr<Authorizer> authorizer)
      : runtime_(runtime), authorizer_(std::move(authorizer)) {}

  struct Request {
    std::string bytes;
    std::string nonce;
  };
  Request sign_request(const std::string& request);
  bool check_reply(const PeerId& callee, ByteView reply, const std::string& nonce);

  /// The nonce to answer with. Errors: Errc::unauthorized when the caller may not ask, or has asked this before;
  /// rpc::Errc::busy when it has asked so often lately that its nonces would take the place of others'.
  Result<std::string> check_request(const PeerId& caller, ByteView request);
  std::string sign_reply(const std::string& reply, const std::string& nonce);

  /// Whether the peer has shown a token lately that is still valid.
  bool is_member(const PeerId& peer) const;
  /// The same of a peer that has answered us lately, and so has seen our token.
  bool knows_us(const PeerId& peer) const;

 private:
  struct Member {
    AccessToken token;
    double shown = 0, answered = 0;  // when
  };

  Member& seen(const PeerId& peer, AccessToken token);
  const Member* member(const PeerId& peer) const;
  Runtime& runtime_;
  std::shared_ptr<Authorizer> authorizer_;
  SeenNonces nonces_;
  std::unordered_map<PeerId, Member> members_, members_before_;  // the latest, and those before them
};

}  // namespace cohive::dht
