// A message of this program's, and keys of cohive, which go through messages of cohive's own.
#include <google/protobuf/descriptor.h>

#include <cstdio>

#include AUTH_HEADER
#include "cohive/core/keys.hpp"

int main() {
  program::AccessToken token, read;
  token.set_username("alice");
  const auto* field = program::AccessToken::descriptor()->FindFieldByName("username");
  if (!read.ParseFromString(token.SerializeAsString()) || read.username() != "alice" || !field) return 1;

  const auto key = cohive::KeyPair::ed25519_from_seed(cohive::Bytes(32, 1)).public_key();
  const auto again = cohive::PublicKey::from_protobuf(cohive::as_bytes(key.protobuf()));
  std::printf("%s\n", read.ShortDebugString().c_str());
  return again && again->peer_id() == key.peer_id() ? 0 : 1;
}
