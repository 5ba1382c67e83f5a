#include <gtest/gtest.h>
#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>

#include "cohive/core/keys.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/dht/validation.hpp"

namespace cohive::dht {
namespace {

Record record_of(const std::string& subkey) {
  return {std::string(20, 'k'), subkey, "\x01", 1700000000.5};
}

/// One key for all tests: making one takes tens of milliseconds.
RsaSignatureValidator& owner() {
  static RsaSignatureValidator validator;
  return validator;
}
RsaSignatureValidator& stranger() {
  static RsaSignatureValidator validator;
  return validator;
}
std::string owned_tag() {
  return msgpack::encode(msgpack::Bin{owner().ownership_marker()});
}

TEST(RsaSignature, LeavesUnprotectedRecordsAlone) {
  Record record = record_of("\xc0");
  EXPECT_EQ(owner().sign_value(record), record.value);
  EXPECT_TRUE(owner().validate(record));
  record.value = msgpack::encode("looks like a [signature:AAAA] but is text");
  EXPECT_TRUE(owner().validate(record));
  EXPECT_EQ(owner().strip_value(record), record.value);
}

TEST(RsaSignature, AValueFullOfUnfinishedSignaturesIsJudgedInOnePass) {
  Record record = record_of(owned_tag());
  for (const char* unfinished : {"[signature:\n", "[signature:a"}) {
    record.value.clear();
    while (record.value.size() < 1'000'000) record.value += unfinished;
    record.value += "\n]";
    for (int i = 0; i < 50; ++i) {
      EXPECT_FALSE(stranger().validate(record));  // seconds each when every one of them looks for its end
      EXPECT_EQ(stranger().strip_value(record), record.value);
    }
  }
  record = record_of(owned_tag());
  record.value = owner().sign_value(record);
  record.value.insert(1, "[signature:\n");
  EXPECT_FALSE(stranger().validate(record)) << "another value than the one that was signed";
  EXPECT_EQ(stranger().strip_value(record), "\x01[signature:\n") << "no signature: they have no newlines";
}

TEST(RsaSignature, ProtectsItsOwnRecordsAgainstChangesAndStrangers) {
  Record record = record_of(owned_tag());
  EXPECT_FALSE(owner().validate(record)) << "unsigned";
  record.value = owner().sign_value(record);
  EXPECT_TRUE(owner().validate(record));
  EXPECT_TRUE(stranger().validate(record));
  EXPECT_EQ(owner().strip_value(record), "\x01");
  EXPECT_EQ(record.value.size(), 1u + 356u) << "the suffix of an RSA-2048 signature";

  Record later = record, moved = record, altered = record, forged = record_of(record.subkey), doubled = record;
  later.expiration += 1;
  moved.key[0] ^= 1;
  altered.value[0] ^= 1;
  doubled.value += record.value.substr(1);
  EXPECT_FALSE(stranger().validate(later));
  EXPECT_FALSE(stranger().validate(moved));
  EXPECT_FALSE(stranger().validate(altered));
  EXPECT_EQ(stranger().sign_value(forged), forged.value) << "a stranger does not sign for others";
  EXPECT_FALSE(stranger().validate(doubled)) << "exactly one signature";
  for (const char* garbage : {"[signature:]", "[signature:AAAA]", "[signature:not base64!]", "[signature:"}) {
    Record bad = record_of(record.subkey);
    bad.value += garbage;
    EXPECT_FALSE(stranger().validate(bad)) << garbage;
  }
}

TEST(RsaSignature, TheKeyMayNameTheOwnerToo) {
  Record record{owner().ownership_marker(), "\xc0", "\x01", 1};
  EXPECT_FALSE(stranger().validate(record));
  record.value = owner().sign_value(record);
  EXPECT_TRUE(stranger().validate(record));
}

TEST(RsaSignature, TwoOwnersOwnNothing) {
  Record record = record_of(owner().ownership_marker() + stranger().ownership_marker());
  record.value = owner().sign_value(record);
  EXPECT_FALSE(owner().validate(record));
  record = record_of(owner().ownership_marker() + owner().ownership_marker());
  record.value = owner().sign_value(record);
  EXPECT_TRUE(stranger().validate(record)) << "named twice is still one";
}

TEST(RsaSignature, RefusesKeysThatAreNoUsableRsaKeys) {
  for (const std::string& key :
       {std::string("ssh-rsa"), std::string("ssh-rsa AAAA"), std::string("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA=="),
        std::string("ssh-rsa ") + std::string(5000, 'A'), std::string("\xff\xff")}) {
    Record record = record_of("[owner:" + key + "]");
    record.value += "[signature:" + std::string(344, 'A') + "]";
    EXPECT_FALSE(owner().validate(record));
  }
}

TEST(RsaSignature, TheMarkerIsTheOpensshKey) {
  EXPECT_EQ(owner().ownership_marker().substr(0, 27), "[owner:ssh-rsa AAAAB3NzaC1y");
  EXPECT_EQ(owner().ownership_marker().size(), 388u);
  EXPECT_EQ(owned_tag().size(), 391u);
  EXPECT_EQ(to_hex(as_bytes(owned_tag()).first(3)), "c50184");
}

TEST(RsaSignature, AKeyFromAnIdentityFileSignsAgainAfterARestart) {
  EXPECT_THROW(RsaSignatureValidator(as_bytes("nonsense")), std::invalid_argument);
  // The PKCS#1 key is the last field of the identity's protobuf: 0801 12 <length> <key>.
  const std::string identity = KeyPair::generate_rsa().protobuf();
  const auto key = as_bytes(identity).subspan(identity.find("\x30\x82"));
  RsaSignatureValidator before(key), after(key);
  EXPECT_EQ(before.ownership_marker(), after.ownership_marker());
  Record record = record_of(msgpack::encode(msgpack::Bin{before.ownership_marker()}));
  record.value = after.sign_value(record);
  EXPECT_TRUE(before.validate(record));
}

TEST(RsaSignature, KeysWithHugeExponentsAreRefusedAsSlowToCheck) {
  for (const char* exponent : {"65537", "2147483647", "1099511627791"}) {
    BIGNUM* e = nullptr;
    BN_dec2bn(&e, exponent);
    EVP_PKEY_CTX* context = EVP_PKEY_CTX_new_from_name(nullptr, "RSA", nullptr);
    EVP_PKEY* key = nullptr;
    ASSERT_GT(EVP_PKEY_keygen_init(context), 0);
    ASSERT_GT(EVP_PKEY_CTX_set1_rsa_keygen_pubexp(context, e), 0);
    ASSERT_GT(EVP_PKEY_generate(context, &key), 0);
    unsigned char* der = nullptr;
    const int size = i2d_PrivateKey(key, &der);
    const RsaSignatureValidator other(ByteView(der, static_cast<std::size_t>(size)));
    OPENSSL_free(der);
    EVP_PKEY_free(key);
    EVP_PKEY_CTX_free(context);
    BN_free(e);
    Record record = record_of(msgpack::encode(msgpack::Bin{other.ownership_marker()}));
    record.value = other.sign_value(record);
    EXPECT_EQ(stranger().validate(record), std::string_view(exponent).size() <= 10) << exponent;
  }
}

TEST(RsaSignature, KeysCanBeMadeOffTheLoop) {
  SimRuntime runtime;
  const auto validator = runtime.run(make_rsa_validator(runtime));
  EXPECT_EQ(validator->ownership_marker().size(), 388u);
}

}  // namespace
}  // namespace cohive::dht
