// The code book of BLOCKWISE_8BIT: bitsandbytes' signed dynamic map, denser near zero.
// Source: docs/wire/hivemind.md, section 5.7.
#pragma once

#include "codec/bins.hpp"

namespace cohive::codec {

/// Values that share one scale.
constexpr std::size_t kScaleBlock = 4096;

/// 256 ascending values from -1 to 1.
const CodeBook& dynamic_map();
/// Sorts values of [-1, 1] to the nearest entry; the lower one in the middle between two.
const Borders& dynamic_borders();

}  // namespace cohive::codec
