// All codecs, for what must hold of each.
#pragma once

#include "cohive/codec/codec.hpp"

namespace cohive::codec {

inline constexpr Codec kEveryCodec[] = {Codec::none,      Codec::meanstd16, Codec::float16,
                                        Codec::quantile8, Codec::uniform8,  Codec::blockwise8,
                                        Codec::block4,    Codec::top_k,     Codec::sparse2};

}  // namespace cohive::codec
