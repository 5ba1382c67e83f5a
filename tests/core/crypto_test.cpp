// Hashes, X25519, ChaCha20-Poly1305 and base64 against published vectors.
#include "cohive/core/crypto.hpp"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <string>

namespace cohive::crypto {
namespace {

Key32 key_of(std::string_view hex) {
  Key32 key{};
  const Bytes bytes = from_hex(hex);
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

Bytes seal(Aead& cipher, std::uint64_t counter, ByteView associated, std::vector<ByteView> parts) {
  std::size_t size = Aead::kTagSize;
  for (ByteView part : parts) size += part.size();
  Bytes sealed(size);
  cipher.seal(counter, associated, parts, sealed.data());
  return sealed;
}

std::optional<Bytes> open(Aead& cipher, std::uint64_t counter, ByteView associated, ByteView sealed) {
  Bytes out(sealed.size() < Aead::kTagSize ? 0 : sealed.size() - Aead::kTagSize);
  if (!cipher.open(counter, associated, sealed, out.data())) return std::nullopt;
  return out;
}

TEST(Hashes, MatchFips180) {
  const ByteView abc = as_bytes("abc");
  EXPECT_EQ(to_hex(sha1(abc)), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(to_hex(sha256(abc)), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256(ByteView())), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha512(abc)),
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
            "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f");
  EXPECT_EQ(sha256({as_bytes("a"), ByteView(), as_bytes("bc")}), sha256(abc));
}

TEST(Hmac, MatchesRfc4231) {
  EXPECT_EQ(to_hex(hmac_sha256(Bytes(20, 0x0b), as_bytes("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(to_hex(hmac_sha256(as_bytes("Jefe"), as_bytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(to_hex(hmac_sha256(Bytes(131, 0xaa), as_bytes("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hmac, TakesAnEmptyKeyAndAnEmptyMessage) {
  EXPECT_EQ(to_hex(hmac_sha256({}, {})), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(X25519, MatchesRfc7748) {
  EXPECT_EQ(x25519(key_of("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"),
                   key_of("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")),
            key_of("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"));
  const auto alice =
      X25519KeyPair::from_secret(key_of("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"));
  const auto bob =
      X25519KeyPair::from_secret(key_of("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
  EXPECT_EQ(to_hex(alice.public_), "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
  EXPECT_EQ(to_hex(bob.public_), "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
  EXPECT_EQ(x25519(alice.secret, bob.public_),
            key_of("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"));
}

TEST(X25519, BothSidesAgree) {
  const auto alice = X25519KeyPair::generate();
  const auto bob = X25519KeyPair::generate();
  EXPECT_NE(alice.public_, bob.public_);
  const auto shared = x25519(alice.secret, bob.public_);
  ASSERT_TRUE(shared);
  EXPECT_EQ(x25519(bob.secret, alice.public_), shared);
}

TEST(X25519, RefusesPointsThatMakeTheSecretZero) {
  const Key32 secret = X25519KeyPair::generate().secret;
  for (const char* point : {"0000000000000000000000000000000000000000000000000000000000000000",
                            "0100000000000000000000000000000000000000000000000000000000000000",
                            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
                            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
                            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"}) {
    EXPECT_FALSE(x25519(secret, key_of(point))) << point;
  }
}

TEST(AeadTest, MatchesRfc8439) {
  // Appendix A.5: its nonce begins with the four zero bytes that Noise prescribes.
  const std::string text =
      "Internet-Drafts are draft documents valid for a maximum of six months and may be updated, replaced, or "
      "obsoleted by "
      "other documents at any time. It is inappropriate to use Internet-Drafts as reference material or to cite them "
      "other "
      "than as /\xe2\x80\x9cwork in progress./\xe2\x80\x9d";
  Aead cipher(key_of("1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0"));
  const Bytes associated = from_hex("f33388860000000000004e91");
  const Bytes sealed = seal(cipher, 0x0807060504030201, associated, {as_bytes(text)});
  ASSERT_EQ(sealed.size(), 265u + 16u);
  EXPECT_EQ(to_hex(ByteView(sealed).first(16)), "64a0861575861af460f062c79be643bd");
  EXPECT_EQ(to_hex(ByteView(sealed).last(16)), "eead9d67890cbb22392336fea1851f38");
  EXPECT_EQ(open(cipher, 0x0807060504030201, associated, sealed), to_bytes(text));
}

TEST(AeadTest, AesMatchesTheVectorsOfGcmAndCountsBigEndian) {
  Aead zero(Key32{}, Cipher::aes256_gcm);  // test cases 13 and 14 of the GCM specification
  EXPECT_EQ(to_hex(seal(zero, 0, {}, {})), "530f8afbc74536b9a963b4f1c4cb738b");
  EXPECT_EQ(to_hex(seal(zero, 0, {}, {Bytes(16)})), "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919");
  // From Python's cryptography: nonce 00000000 0102030405060708.
  Aead cipher(key_of("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"), Cipher::aes256_gcm);
  const Bytes sealed = seal(cipher, 0x0102030405060708, as_bytes("aad"), {as_bytes("to the hive")});
  EXPECT_EQ(to_hex(sealed), "703e457ab58429f66ae9984a3d756dad6b6391b452b3bf25380c2f");
  EXPECT_EQ(open(cipher, 0x0102030405060708, as_bytes("aad"), sealed), to_bytes("to the hive"));
  EXPECT_EQ(open(cipher, 0x0102030405060709, as_bytes("aad"), sealed), std::nullopt);
}

/// By OpenSSL: what we seal with may be another library.
Bytes gcm_of_openssl(const Key32& key, std::uint8_t counter, ByteView associated, ByteView message) {
  std::array<std::uint8_t, 12> nonce{};
  nonce.back() = counter;
  Bytes sealed(message.size() + Aead::kTagSize);
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  int size = 0;
  EVP_EncryptInit_ex(context, EVP_aes_256_gcm(), nullptr, key.data(), nonce.data());
  EVP_EncryptUpdate(context, nullptr, &size, associated.data(), static_cast<int>(associated.size()));
  EVP_EncryptUpdate(context, sealed.data(), &size, message.data(), static_cast<int>(message.size()));
  EVP_EncryptFinal_ex(context, sealed.data() + size, &size);
  EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, Aead::kTagSize, sealed.data() + message.size());
  EVP_CIPHER_CTX_free(context);
  return sealed;
}

TEST(AeadTest, AesSealsAsOpenSslDoes) {
  Key32 key;
  random_bytes(key);
  Aead cipher(key, Cipher::aes256_gcm);
  for (const std::size_t size : {1u, 16u, 100u, 127u, 128u, 129u, 767u, 768u, 4097u, 65519u}) {
    Bytes message(size);
    random_bytes(message);
    EXPECT_EQ(seal(cipher, 9, as_bytes("aad"), {message}), gcm_of_openssl(key, 9, as_bytes("aad"), message)) << size;
  }
}

/// What holds for every cipher.
class EveryAead : public ::testing::TestWithParam<Cipher> {};
INSTANTIATE_TEST_SUITE_P(Ciphers, EveryAead, ::testing::Values(Cipher::chacha20_poly1305, Cipher::aes256_gcm),
                         [](const auto& one) { return one.param == Cipher::aes256_gcm ? "Aes" : "ChaCha"; });

TEST_P(EveryAead, SealsPartsOfAnySizeLikeTheWhole) {
  Aead cipher(Key32{7}, GetParam());
  Bytes message(1000);
  random_bytes(message);
  const Bytes whole = seal(cipher, 5, as_bytes("aad"), {message});
  const ByteView view = message;
  for (const std::size_t cut : {0u, 1u, 63u, 64u, 65u, 500u, 999u, 1000u})
    EXPECT_EQ(seal(cipher, 5, as_bytes("aad"), {view.first(cut), {}, view.subspan(cut)}), whole) << cut;
  EXPECT_EQ(open(cipher, 5, as_bytes("aad"), whole), message);
}

TEST_P(EveryAead, OpensEverySizeInPlaceAgain) {
  Aead sender(Key32{1}, GetParam()), receiver(Key32{1}, GetParam());
  for (const std::size_t size : {0u, 1u, 15u, 16u, 17u, 255u, 4096u, 65519u}) {
    Bytes message(size);
    random_bytes(message);
    Bytes sealed = seal(sender, size, {}, {message});
    ASSERT_TRUE(receiver.open(size, {}, sealed, sealed.data())) << size;
    sealed.resize(size);
    EXPECT_EQ(sealed, message);
  }
}

TEST_P(EveryAead, DecryptsToWhereTheFirstBytesSay) {
  Aead sender(Key32{1}, GetParam()), receiver(Key32{1}, GetParam());
  std::uint64_t counter = 0;
  for (const std::size_t size : {16u, 17u, 4096u, 65519u}) {
    for (const bool elsewhere : {true, false}) {
      Bytes message(size);
      random_bytes(message);
      Bytes sealed = seal(sender, ++counter, {}, {message}), there(size);
      const auto destination = [&](ByteView first) -> std::uint8_t* {
        EXPECT_TRUE(std::ranges::equal(first, ByteView(message).first(Aead::kFirst)));
        std::ranges::copy(first, there.begin());
        return elsewhere ? there.data() + first.size() : nullptr;
      };
      Bytes forged = sealed;
      forged.back() ^= 1;
      EXPECT_FALSE(receiver.open(counter, forged, destination));
      ASSERT_TRUE(receiver.open(counter, sealed, destination)) << size;
      sealed.resize(size);
      EXPECT_EQ(elsewhere ? there : sealed, message);
    }
  }
  Bytes tiny = seal(sender, ++counter, {}, {as_bytes("fifteen bytes..")});
  EXPECT_FALSE(receiver.open(counter, tiny, [](ByteView) { return nullptr; })) << "no first bytes to look at";
}

TEST_P(EveryAead, RefusesForgedMessagesAndStillOpensTheNextOne) {
  Aead cipher(Key32{3}, GetParam());
  const Bytes sealed = seal(cipher, 1, as_bytes("aad"), {as_bytes("hello")});
  for (std::size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    Bytes forged = sealed;
    forged[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    EXPECT_FALSE(open(cipher, 1, as_bytes("aad"), forged)) << bit;
  }
  EXPECT_FALSE(open(cipher, 2, as_bytes("aad"), sealed)) << "another counter";
  EXPECT_FALSE(open(cipher, 1, as_bytes("AAD"), sealed)) << "other associated data";
  EXPECT_FALSE(open(cipher, 1, {}, sealed)) << "no associated data";
  for (std::size_t size = 0; size < sealed.size(); ++size)
    EXPECT_FALSE(open(cipher, 1, as_bytes("aad"), ByteView(sealed).first(size))) << size;
  Aead stranger(Key32{4}, GetParam());
  EXPECT_FALSE(open(stranger, 1, as_bytes("aad"), sealed));
  EXPECT_EQ(open(cipher, 1, as_bytes("aad"), sealed), to_bytes("hello"));
}

TEST_P(EveryAead, UsesAllBitsOfTheCounter) {
  Aead cipher(Key32{9}, GetParam());
  const Bytes low = seal(cipher, 1, {}, {as_bytes("same")});
  const Bytes high = seal(cipher, std::uint64_t{1} << 56, {}, {as_bytes("same")});
  EXPECT_NE(low, high);
  EXPECT_EQ(open(cipher, std::uint64_t{1} << 56, {}, high), to_bytes("same"));
}

TEST(Base64, MatchesRfc4648) {
  const std::pair<const char*, const char*> cases[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"}};
  for (const auto& [plain, text] : cases) {
    EXPECT_EQ(base64_encode(as_bytes(plain)), text);
    EXPECT_EQ(base64_decode(text), to_bytes(plain));
  }
  EXPECT_EQ(base64_encode(from_hex("fbff")), "+/8=");
  for (const char* bad : {"Zg", "Zg=", "Zg===", "Z", "Zh==", "Zm9v\n", " Zm9v", "-_8=", "Zm9v!"})
    EXPECT_FALSE(base64_decode(bad)) << bad;
}

TEST(RandomBytes, AreNotTheSameTwice) {
  Key32 a{}, b{};
  random_bytes(a);
  random_bytes(b);
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace cohive::crypto
