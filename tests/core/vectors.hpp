// The published keys, ids, signatures and addresses that the tests of core compare with.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cohive/core/bytes.hpp"
#include "cohive/core/peer_id.hpp"

namespace cohive::testing {

inline const nlohmann::json& libp2p_vectors() {
  static const auto vectors = [] {
    std::ifstream file(std::string(COHIVE_TEST_DATA) + "/libp2p_vectors.json");
    return nlohmann::json::parse(file);
  }();
  return vectors;
}

/// An Ed25519 identity of no published vector, for tests that need any.
inline constexpr const char* kPeerText = "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq";
inline const PeerId kPeer = *PeerId::from_text(kPeerText);

inline std::string text_of(const nlohmann::json& value) {
  return value.get<std::string>();
}
/// The bytes of a hexadecimal string in the vectors.
inline Bytes hex_of(const nlohmann::json& value) {
  return from_hex(value.get<std::string>());
}

}  // namespace cohive::testing
