#include <gtest/gtest.h>

#include "cohive/dht/validation.hpp"

namespace cohive::dht {
namespace {

Record record_of(const std::string& subkey) {
  return {std::string(20, 'k'), subkey, "\x01", 1700000000.5};
}

TEST(RsaSignature, LeavesUnprotectedRecordsAlone) {
  RsaSignatureValidator validator;
  const Record record = record_of("\xc0");
  EXPECT_EQ(validator.sign_value(record), record.value);
  EXPECT_TRUE(validator.validate(record));
}

TEST(RsaSignature, ProtectsItsOwnRecordsAgainstChangesAndStrangers) {
  RsaSignatureValidator owner, stranger;
  Record record = record_of(msgpack::encode(msgpack::Bin{owner.ownership_marker()}));
  EXPECT_FALSE(owner.validate(record)) << "unsigned";
  record.value = owner.sign_value(record);
  EXPECT_TRUE(owner.validate(record));
  EXPECT_TRUE(stranger.validate(record));
  EXPECT_EQ(owner.strip_value(record), "\x01");
  EXPECT_EQ(record.value.size(), 1u + 356u) << "the suffix of an RSA-2048 signature";

  Record later = record;
  later.expiration += 1;
  EXPECT_FALSE(stranger.validate(later));
  Record forged = record_of(record.subkey);
  EXPECT_EQ(stranger.sign_value(forged), forged.value) << "a stranger does not sign for others";
  Record doubled = record;
  doubled.value += record.value.substr(1);
  EXPECT_FALSE(stranger.validate(doubled)) << "exactly one signature";
}

TEST(RsaSignature, TheMarkerIsTheOpensshKey) {
  RsaSignatureValidator owner;
  EXPECT_EQ(owner.ownership_marker().substr(0, 27), "[owner:ssh-rsa AAAAB3NzaC1y");
  EXPECT_EQ(msgpack::encode(msgpack::Bin{owner.ownership_marker()}).size(), 391u);
}

}  // namespace
}  // namespace cohive::dht
