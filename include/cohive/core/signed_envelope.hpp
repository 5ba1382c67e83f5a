/// \file
/// Signed envelopes: a payload with the key and the signature of the peer that made it. Source: docs/wire/libp2p.md,
/// section 1.6.
#pragma once

#include <string>
#include <string_view>

#include "cohive/core/keys.hpp"
#include "cohive/core/result.hpp"

namespace cohive {

/// What an envelope holds, and the key that signed it.
struct OpenedEnvelope {
  PublicKey signer;     ///< whose signature holds
  std::string payload;  ///< what was signed
};

/// Returns the serialised envelope. `domain` and `type` say what the payload is, and are signed with it.
std::string seal_envelope(const KeyPair& key, std::string_view domain, std::string_view type, std::string payload);
/// Verifies the signature, for payloads of one kind. Errors: Errc::malformed, Errc::limit_exceeded.
Result<OpenedEnvelope> open_envelope(ByteView envelope, std::string_view domain, std::string_view type);

}  // namespace cohive
