// Signed peer records: round trip, Python's records, and every way to tamper. Source: docs/wire/libp2p.md, section 1.6.
#include "cohive/core/signed_record.hpp"

#include "cohive/core/errors.hpp"
#include "core/vectors.hpp"

namespace cohive {
namespace {

using testing::hex_of;
using testing::libp2p_vectors;
using testing::text_of;

KeyPair vector_key() {
  Bytes seed(32);
  for (std::size_t i = 0; i < seed.size(); ++i) seed[i] = static_cast<std::uint8_t>(i);
  return KeyPair::ed25519_from_seed(seed);
}

TEST(SignedRecord, RoundTripsWithKeysOfBothKinds) {
  const std::vector<Multiaddr> addresses = {Multiaddr::from_text("/ip4/1.2.3.4/tcp/4001").value(),
                                            Multiaddr::from_text("/dns4/a.example/tcp/1").value()};
  for (const KeyPair& key : {KeyPair::generate_ed25519(), KeyPair::generate_rsa()}) {
    const auto record = open_signed_peer_record(as_bytes(make_signed_peer_record(key, ~std::uint64_t{0}, addresses)));
    ASSERT_TRUE(record) << record.error();
    EXPECT_EQ(record->peer, key.peer_id());
    EXPECT_EQ(record->sequence, ~std::uint64_t{0});
    EXPECT_EQ(record->addresses, addresses);
  }
}

TEST(SignedRecord, IsTheSameBytesAsAnIndependentImplementation) {
  const auto& vector = libp2p_vectors()["envelope"];
  const auto address = Multiaddr::from_text("/ip4/127.0.0.1/tcp/4001").value();
  EXPECT_EQ(to_hex(as_bytes(make_signed_peer_record(vector_key(), vector["sequence"], {address}))),
            text_of(vector["valid"]));
  const auto record = open_signed_peer_record(hex_of(vector["valid"]));
  ASSERT_TRUE(record) << record.error();
  EXPECT_EQ(record->addresses, std::vector<Multiaddr>{address});
}

TEST(SignedRecord, AnUnknownAddressIsLeftOutAndTheRestKept) {
  const auto record = open_signed_peer_record(hex_of(libp2p_vectors()["envelope"]["with_an_unknown_address"]));
  ASSERT_TRUE(record) << record.error();
  EXPECT_EQ(record->addresses.size(), 1u);
}

TEST(SignedRecord, RefusesRecordsOfOthersOtherDomainsAndOtherTypes) {
  for (const char* name : {"signed_by_another_peer", "for_another_domain", "of_another_type"}) {
    const auto record = open_signed_peer_record(hex_of(libp2p_vectors()["envelope"][name]));
    ASSERT_FALSE(record) << name;
    EXPECT_EQ(record.error(), Errc::malformed) << name;
  }
}

TEST(SignedRecord, NoBitCanBeChangedAndNothingCutOff) {
  const Bytes good = hex_of(libp2p_vectors()["envelope"]["valid"]);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes tampered = good;
    tampered[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    EXPECT_FALSE(open_signed_peer_record(tampered)) << bit;
  }
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(open_signed_peer_record(ByteView(good).first(size))) << size;
}

TEST(SignedRecord, IsBoundedInSizeAndAddresses) {
  EXPECT_EQ(open_signed_peer_record(Bytes(1 << 20)).error(), Errc::limit_exceeded);
  const std::vector<Multiaddr> many(1000, Multiaddr::from_text("/ip4/1.2.3.4/tcp/4001").value());
  const auto record = open_signed_peer_record(as_bytes(make_signed_peer_record(vector_key(), 1, many)));
  ASSERT_TRUE(record) << record.error();
  EXPECT_LT(record->addresses.size(), many.size());
}

}  // namespace
}  // namespace cohive
