#include "signed_calls.hpp"

#include <cmath>

#include "cohive/core/crypto.hpp"
#include "cohive/core/varint.hpp"
#include "cohive/dht/errors.hpp"
#include "cohive/proto/auth.pb.h"
#include "cohive/rpc/errors.hpp"
#include "core/detail/bounded_parse.hpp"

namespace cohive::dht {
namespace {

constexpr char kAuthField = 1 << 3 | 2;
constexpr std::size_t kNonceBytes = 8;
constexpr std::size_t kMaxNonceBytes = 64;
constexpr double kMaxAge = 60;          // seconds between the clocks of caller and callee
constexpr double kMemberSeconds = 600;  // after a token was shown
constexpr double kKnownSeconds = 300;   // shorter: a peer that we think knows us still does
constexpr std::size_t kMaxMembers = 16'384;

/// A message whose first field is `auth`, taken apart.
struct Parts {
  ByteView auth, rest;
};
std::optional<Parts> split(ByteView message) {
  if (message.empty() || message[0] != kAuthField) return std::nullopt;
  message = message.subspan(1);
  const Varint size = read_varint(message);
  if (size.status != VarintStatus::ok || size.value > message.size() - size.size) return std::nullopt;
  message = message.subspan(size.size);
  return Parts{message.first(size.value), message.subspan(size.value)};
}

std::string joined(const std::string& auth, std::string_view rest) {
  std::string message(1, kAuthField);
  append_varint(message, auth.size());
  message += auth;
  return message.append(rest);
}

/// Fills in the signature over the whole message.
template <class Auth>
std::string sign(const RsaSignatureValidator& key, Auth& auth, const std::string& rest) {
  auth.set_signature(key.sign(joined(auth.SerializeAsString(), rest)));
  return joined(auth.SerializeAsString(), rest);
}

/// Whether the key of `token` signed the message.
template <class Auth>
bool is_signed(const RsaSignatureValidator& key, const proto::AccessToken& token, Auth auth, ByteView rest) {
  const std::string signature = auth.signature();
  auth.clear_signature();
  return key.verify(token.public_key(), joined(auth.SerializeAsString(), as_text(rest)), signature);
}

AccessToken token_of(const proto::AccessToken& token) {
  return {token.username(), token.public_key(), token.expiration_time(), token.signature()};
}
void fill(proto::AccessToken& out, const AccessToken& token) {
  out.set_username(token.username);
  out.set_public_key(token.public_key);
  out.set_expiration_time(token.expiration_time);
  out.set_signature(token.signature);
}

}  // namespace

SignedCalls::Request SignedCalls::sign_request(const std::string& request) {
  Bytes nonce(kNonceBytes);
  crypto::random_bytes(nonce);
  proto::RequestAuthInfo auth;
  fill(*auth.mutable_client_access_token(), authorizer_->token());
  auth.set_time(runtime_.wall_time());
  auth.set_nonce(nonce.data(), nonce.size());
  return {sign(authorizer_->key(), auth, request), to_string(nonce)};
}

bool SignedCalls::check_reply(const PeerId& callee, ByteView reply, const std::string& nonce) {
  const auto parts = split(reply);
  proto::ResponseAuthInfo auth;
  if (!parts || !parse_bounded(auth, parts->auth) || auth.nonce() != nonce) return false;
  AccessToken token = token_of(auth.service_access_token());
  if (!authorizer_->is_valid(token, callee) ||
      !is_signed(authorizer_->key(), auth.service_access_token(), auth, parts->rest))
    return false;
  seen(callee, std::move(token)).answered = runtime_.wall_time();
  return true;
}

Result<std::string> SignedCalls::check_request(const PeerId& caller, ByteView request) {
  const Error refused(Errc::unauthorized);
  const auto parts = split(request);
  proto::RequestAuthInfo auth;
  if (!parts || !parse_bounded(auth, parts->auth)) return refused;
  if (auth.nonce().empty() || auth.nonce().size() > kMaxNonceBytes) return refused;
  AccessToken token = token_of(auth.client_access_token());
  if (!authorizer_->is_valid(token, caller)) return refused;
  if (!is_signed(authorizer_->key(), auth.client_access_token(), auth, parts->rest)) return refused;
  if (!auth.service_public_key().empty() && auth.service_public_key() != authorizer_->key().public_key())
    return refused;  // made for another node, which may want to use it here
  const double time = runtime_.wall_time();
  if (!(std::abs(auth.time() - time) <= kMaxAge)) return refused;
  switch (nonces_.add(caller, auth.nonce(), auth.time() + kMaxAge, time, runtime_.now())) {
    case SeenNonces::Outcome::fresh:
      break;
    case SeenNonces::Outcome::seen:
      return refused;
    case SeenNonces::Outcome::full:
      return Error(rpc::Errc::busy, "this member has called too often");
  }
  seen(caller, std::move(token));
  return auth.nonce();
}

/// Who has not been seen for longer than the latest thousands of others is forgotten.
SignedCalls::Member& SignedCalls::seen(const PeerId& peer, AccessToken token) {
  if (members_.size() >= kMaxMembers / 2 && !members_.contains(peer)) members_before_ = std::exchange(members_, {});
  const auto [at, fresh] = members_.try_emplace(peer);
  Member& member = at->second;
  if (const auto before = members_before_.find(peer); fresh && before != members_before_.end()) {
    member = std::move(before->second);
    members_before_.erase(before);
  }
  member.token = std::move(token);
  member.shown = runtime_.wall_time();
  return member;
}

const SignedCalls::Member* SignedCalls::member(const PeerId& peer) const {
  for (const auto* members : {&members_, &members_before_})
    if (const auto at = members->find(peer); at != members->end())
      return authorizer_->is_valid(at->second.token, peer) ? &at->second : nullptr;
  return nullptr;
}

bool SignedCalls::is_member(const PeerId& peer) const {
  const Member* known = member(peer);
  return known && runtime_.wall_time() - known->shown <= kMemberSeconds;
}

bool SignedCalls::knows_us(const PeerId& peer) const {
  const Member* known = member(peer);
  return known && runtime_.wall_time() - known->answered <= kKnownSeconds;
}

std::string SignedCalls::sign_reply(const std::string& reply, const std::string& nonce) {
  proto::ResponseAuthInfo auth;
  fill(*auth.mutable_service_access_token(), authorizer_->token());
  auth.set_nonce(nonce);
  return sign(authorizer_->key(), auth, reply);
}

}  // namespace cohive::dht
