/// \file
/// base58btc, base32 (lower case, no padding) and base36. Used for PeerIDs and CIDs.
#pragma once

#include <optional>
#include <string>

#include "cohive/core/bytes.hpp"

namespace cohive {

std::string base58_encode(ByteView data);
std::optional<Bytes> base58_decode(std::string_view text);
std::string base32_encode(ByteView data);
std::optional<Bytes> base32_decode(std::string_view text);
std::string base36_encode(ByteView data);
std::optional<Bytes> base36_decode(std::string_view text);

}  // namespace cohive
