/// \file
/// CodecSet: the codecs that a peer offers, and those that a whole group has agreed on.
#pragma once

#include <bitset>
#include <initializer_list>
#include <string>
#include <string_view>

#include "cohive/codec/codec.hpp"

namespace cohive::codec {

/// A set of codecs. Peers tell each other sets as text.
class CodecSet {
 public:
  CodecSet() = default;
  /// Makes a set of these codecs.
  CodecSet(std::initializer_list<Codec> codecs);

  /// Adds a codec; one that is there already changes nothing.
  void insert(Codec codec);
  /// Tells whether the codec is in the set.
  bool contains(Codec codec) const noexcept { return codecs_.test(static_cast<std::size_t>(codec)); }
  /// Tells whether the set has no codec.
  bool empty() const noexcept { return codecs_.none(); }

  /// Names the codecs, in the order of their numbers and joined by commas; empty for an empty set.
  std::string text() const;
  /// Reads such a text. Unknown names are left out, so that versions can mix; names beyond 256 characters, too.
  static CodecSet from_text(std::string_view text);

  /// Returns what both sets have.
  friend CodecSet operator&(const CodecSet& a, const CodecSet& b) noexcept {
    CodecSet both;
    both.codecs_ = a.codecs_ & b.codecs_;
    return both;
  }
  friend bool operator==(const CodecSet&, const CodecSet&) = default;

 private:
  std::bitset<256> codecs_;  // by number
};

}  // namespace cohive::codec
