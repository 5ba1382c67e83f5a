/// \file
/// base58btc, base32 (lower case, no padding) and base36. Used for PeerIDs and CIDs.
#pragma once

#include <optional>
#include <string>

#include "cohive/core/bytes.hpp"

namespace cohive {

/// Returns base58btc, as peer ids are written.
std::string base58_encode(ByteView data);
/// Returns the bytes; nullopt for text that is not base58btc.
std::optional<Bytes> base58_decode(std::string_view text);
/// Returns base32 in lower case, without padding.
std::string base32_encode(ByteView data);
/// Returns the bytes; nullopt for text that is not base32 in lower case.
std::optional<Bytes> base32_decode(std::string_view text);
/// Returns base36 in lower case.
std::string base36_encode(ByteView data);
/// Returns the bytes; nullopt for text that is not base36 in lower case.
std::optional<Bytes> base36_decode(std::string_view text);

}  // namespace cohive
