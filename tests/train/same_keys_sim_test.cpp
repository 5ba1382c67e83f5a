// A seed that fails is looked at again in another process: nothing of a simulated run may differ there.
#include <gtest/gtest.h>

#include "cohive/core/crypto.hpp"
#include "cohive/testing/cheap_keys.hpp"

namespace cohive::sim {
namespace {

TEST(CheapKeys, AreTheSameInEveryProcess) {
  EXPECT_EQ(to_hex(crypto::sha256(cheap_key(5))), "7a08a96e929f9e8fc72bf509b043862a6e3459d33ac0144ace0c9e53706fa999");
  EXPECT_NE(cheap_key(5), cheap_key(6));
}

}  // namespace
}  // namespace cohive::sim
