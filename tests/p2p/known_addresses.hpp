// Addresses in short, for tests of what is done with them.
#pragma once

#include <string>

#include "p2p/address_book.hpp"

namespace cohive::p2p {

inline Multiaddr address(const std::string& text) {
  return Multiaddr::from_text(text).value();
}
/// A public address as its peer announced it.
inline KnownAddress told(const std::string& text) {
  return {address(text), KnownAddress::Source::announced, Multiaddr::Scope::public_};
}

}  // namespace cohive::p2p
