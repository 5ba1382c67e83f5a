// Walking over encoded msgpack without decoding all of it at once: large containers are read piece by piece, each piece
// within its own bounds. Views point into the bytes that are read.
#pragma once

#include <cstdint>
#include <optional>

#include "cohive/core/bytes.hpp"

namespace cohive::msgpack {

/// Takes the first object off the front of `bytes`; nullopt, and nothing is taken, when it is truncated, of no known
/// type, or made of more than `max_values` (containers and what they hold, except in extensions, counted together).
std::optional<ByteView> take(ByteView& bytes, std::size_t max_values);

/// Takes the header of an array off the front and returns how many items follow; nullopt where there is none.
std::optional<std::size_t> take_array(ByteView& bytes);

/// An object that is bytes (bin): these.
std::optional<ByteView> bin_of(ByteView object);

/// An extension object, taken apart.
struct Extension {
  std::int8_t type = 0;
  ByteView payload;
};
std::optional<Extension> extension_of(ByteView object);

}  // namespace cohive::msgpack
