// One input through one target, with the promise that all of them share: memory is bounded by what a stranger sends.
#pragma once

#include "fuzz.hpp"

namespace cohive::fuzz {

inline constexpr std::size_t kBytesPerByte = 16;  ///< of memory, for each byte of the input
inline constexpr std::size_t kBytesOnce = 8
                                          << 20;  ///< hosts, buffers, 64 Ki msgpack values, what a target keeps itself

/// Ends the process when a promise is broken. Needs memory_peak.cpp.
void run(Target target, ByteView input);

/// An input of that size which is made of a part of another one, again and again, behind the rest of it: what takes
/// little memory once may take much in a frame that is full of it.
Bytes repeated(ByteView input, std::size_t from, std::size_t length, std::size_t size);

}  // namespace cohive::fuzz
