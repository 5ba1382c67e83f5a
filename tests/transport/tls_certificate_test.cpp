// Certificates of libp2p's TLS: those of the specification, our own, and those that prove nothing.
#include "transport/tls_certificate.hpp"

#include <gtest/gtest.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/param_build.h>
#include <openssl/x509v3.h>

#include "cohive/transport/errors.hpp"
#include "core/vectors.hpp"
#include "transport/identities.hpp"

namespace cohive::transport {
namespace {

using cohive::testing::hex_of;
using cohive::testing::libp2p_vectors;
using cohive::testing::text_of;

constexpr double kNow = 1.7e9;

X509Ptr from_der(ByteView der) {
  const unsigned char* at = der.data();
  return X509Ptr(d2i_X509(nullptr, &at, static_cast<long>(der.size())));
}
/// Why the certificate is refused; empty when it is not.
std::string refusal(const X509& certificate, double at = kNow) {
  const auto key = verify_certificate(certificate, at);
  if (key) return {};
  EXPECT_EQ(key.error(), Errc::handshake_failed);
  return key.error().message();
}
void sign_again(TlsCertificate& certificate) {
  ASSERT_GT(X509_sign(certificate.x509.get(), certificate.key.get(), EVP_sha256()), 0);
}

TEST(TlsCertificate, ThoseOfTheSpecificationNameTheirPeers) {
  for (const auto& vector : libp2p_vectors()["tls_certificates"]) {
    const auto certificate = from_der(hex_of(vector["certificate"]));
    ASSERT_TRUE(certificate) << vector["name"];
    const auto key = verify_certificate(*certificate, kNow);
    const std::string expected = text_of(vector["peer_id"]);
    EXPECT_EQ(key.has_value(), !expected.empty()) << vector["name"];
    if (key) EXPECT_EQ(key->peer_id().text(), expected) << vector["name"];
  }
}

TEST(TlsCertificate, OursProvesOurIdentityWhateverItsKind) {
  for (const auto& pair : {identity(1), KeyPair::generate_rsa()}) {
    const auto made = make_certificate(pair);
    const auto key = verify_certificate(*made.x509, kNow);
    ASSERT_TRUE(key) << key.error();
    EXPECT_EQ(key->peer_id(), pair.peer_id());
  }
}

TEST(TlsCertificate, IsRefusedOutsideItsTime) {
  auto made = make_certificate(identity(1));
  EXPECT_EQ(refusal(*made.x509, 0), refusal(*made.x509, 1e11));
  EXPECT_NE(refusal(*made.x509, 0), "");
  ASSERT_TRUE(ASN1_TIME_set(X509_getm_notAfter(made.x509.get()), static_cast<time_t>(kNow) - 1));
  sign_again(made);
  EXPECT_NE(refusal(*made.x509).find("not valid now"), std::string::npos);
}

TEST(TlsCertificate, IsRefusedWithAnotherKeyThanTheSignedOne) {
  auto made = make_certificate(identity(1));
  made.key.reset(EVP_EC_gen("P-256"));
  ASSERT_TRUE(X509_set_pubkey(made.x509.get(), made.key.get()));
  sign_again(made);
  EXPECT_NE(refusal(*made.x509).find("identity signature"), std::string::npos);
}

TEST(TlsCertificate, IsRefusedUnlessItSignsItself) {
  auto made = make_certificate(identity(1));
  const PkeyPtr other(EVP_EC_gen("P-256"));
  ASSERT_GT(X509_sign(made.x509.get(), other.get(), EVP_sha256()), 0);
  EXPECT_NE(refusal(*made.x509).find("not signed by itself"), std::string::npos);
}

TEST(TlsCertificate, IsRefusedWithoutTheExtensionOrWithAnUnknownCriticalOne) {
  auto bare = make_certificate(identity(1));
  X509_EXTENSION_free(X509_delete_ext(bare.x509.get(), 0));
  sign_again(bare);
  EXPECT_NE(refusal(*bare.x509).find("names no libp2p key"), std::string::npos);

  for (const bool critical : {false, true}) {
    auto made = make_certificate(identity(1));
    ASN1_OBJECT* id = OBJ_txt2obj("1.2.3.4.5", 1);
    ASN1_OCTET_STRING* value = ASN1_OCTET_STRING_new();
    X509_EXTENSION* extension = X509_EXTENSION_create_by_OBJ(nullptr, id, critical, value);
    X509_add_ext(made.x509.get(), extension, -1);
    X509_EXTENSION_free(extension);
    ASN1_OCTET_STRING_free(value);
    ASN1_OBJECT_free(id);
    sign_again(made);
    EXPECT_EQ(refusal(*made.x509).empty(), !critical);
  }
}

TEST(TlsCertificate, IsRefusedWithAnRsaKeyThatIsTooSmallOrTooLarge) {
  for (const auto& [bits, accepted] : {std::pair(1024, false), {2048, true}}) {
    auto made = make_certificate(identity(1));
    made.key.reset(EVP_RSA_gen(static_cast<unsigned>(bits)));
    ASSERT_TRUE(X509_set_pubkey(made.x509.get(), made.key.get()));
    sign_again(made);
    const std::string why = refusal(*made.x509);
    EXPECT_EQ(why.find("unsuitable") == std::string::npos, accepted) << why;
  }
}

/// A public key of RSA with an exponent as long as its modulus. No such key is made by mistake.
PkeyPtr with_huge_exponent(int bits) {
  BIGNUM *modulus = BN_new(), *exponent = BN_new();
  BN_rand(modulus, bits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ODD);
  BN_rand(exponent, bits - 1, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ODD);
  OSSL_PARAM_BLD* builder = OSSL_PARAM_BLD_new();
  OSSL_PARAM_BLD_push_BN(builder, OSSL_PKEY_PARAM_RSA_N, modulus);
  OSSL_PARAM_BLD_push_BN(builder, OSSL_PKEY_PARAM_RSA_E, exponent);
  OSSL_PARAM* params = OSSL_PARAM_BLD_to_param(builder);
  EVP_PKEY_CTX* context = EVP_PKEY_CTX_new_from_name(nullptr, "RSA", nullptr);
  EVP_PKEY* key = nullptr;
  EVP_PKEY_fromdata_init(context);
  EVP_PKEY_fromdata(context, &key, EVP_PKEY_PUBLIC_KEY, params);
  EVP_PKEY_CTX_free(context);
  OSSL_PARAM_free(params);
  OSSL_PARAM_BLD_free(builder);
  BN_free(exponent);
  BN_free(modulus);
  return PkeyPtr(key);
}

TEST(TlsCertificate, IsRefusedWithAnRsaKeyWhoseExponentMakesEachCheckSlow) {
  auto made = make_certificate(identity(1));
  const PkeyPtr slow = with_huge_exponent(3072);
  ASSERT_TRUE(slow);
  ASSERT_TRUE(X509_set_pubkey(made.x509.get(), slow.get()));
  EXPECT_NE(refusal(*made.x509).find("unsuitable"), std::string::npos) << "before anything is checked with it";
}

/// The certificate as a peer receives it.
X509Ptr as_received(const TlsCertificate& certificate) {
  unsigned char* der = nullptr;
  const int size = i2d_X509(certificate.x509.get(), &der);
  auto received = from_der(ByteView(der, static_cast<std::size_t>(std::max(size, 0))));
  OPENSSL_free(der);
  return received;
}

TEST(TlsCertificate, IsRefusedWithAKeyThatIsOnNoNamedNistCurve) {
  for (const auto& [curve, encoding, accepted] : {std::tuple("P-256", "named_curve", true),
                                                  {"P-384", "named_curve", true},
                                                  {"P-256", "explicit", false},
                                                  {"secp256k1", "named_curve", false}}) {
    auto made = make_certificate(identity(1));
    made.key.reset(EVP_EC_gen(curve));
    ASSERT_TRUE(EVP_PKEY_set_utf8_string_param(made.key.get(), OSSL_PKEY_PARAM_EC_ENCODING, encoding));
    ASSERT_TRUE(X509_set_pubkey(made.x509.get(), made.key.get()));
    sign_again(made);
    const auto received = as_received(made);
    ASSERT_TRUE(received);
    const std::string why = refusal(*received);
    EXPECT_EQ(why.find("unsuitable") == std::string::npos, accepted) << curve << ", " << encoding << ": " << why;
  }
}

TEST(TlsCertificate, TheExtensionIsExactlyTwoOctetStrings) {
  const Bytes der = from_hex("30080402aabb0402ccdd");
  const auto good = parse_signed_key(der);
  ASSERT_TRUE(good);
  EXPECT_EQ(to_hex(good->public_key), "aabb");
  EXPECT_EQ(to_hex(good->signature), "ccdd");
  EXPECT_TRUE(parse_signed_key(from_hex("300404000400")));
  for (const char* bad : {"", "30", "3000", "30080402aabb0402cc", "30080402aabb0402ccddee",  // cut, or with more behind
                          "30090402aabb0402ccddee", "31080402aabb0402ccdd", "30080403aabb0402ccdd",
                          "30080302aabb0402ccdd",          // another type
                          "3081080402aabb0402ccdd",        // a length that is not the shortest
                          "30800402aabb0402ccdd0000",      // an indefinite length
                          "3084ffffffff0402aabb0402ccdd",  // a length beyond all memory
                          "30040402aabb", "b0080402aabb0402ccdd"})
    EXPECT_FALSE(parse_signed_key(from_hex(bad))) << bad;
}

}  // namespace
}  // namespace cohive::transport
