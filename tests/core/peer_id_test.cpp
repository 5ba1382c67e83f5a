// PeerIDs: bytes, text forms, and what is refused. Vectors: docs/wire/libp2p.md, sections 1.4 and 11.
#include "cohive/core/peer_id.hpp"

#include "core/vectors.hpp"

namespace cohive {
namespace {

using testing::hex_of;
using testing::libp2p_vectors;
using testing::text_of;

constexpr const char* kEd25519 = "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq";
constexpr const char* kSha256 = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N";

TEST(PeerIdTest, IsDerivedFromAKeyOfEveryType) {
  for (const auto& [type, key] : libp2p_vectors()["keys"].items()) {
    const PeerId id = PeerId::of_public_key(hex_of(key["public"]));
    EXPECT_EQ(to_hex(id.bytes()), text_of(key["peer_id_hex"])) << type;
    EXPECT_EQ(id.text(), text_of(key["peer_id"])) << type;
    EXPECT_EQ(PeerId::from_text(id.text()), id) << type;
    EXPECT_EQ(PeerId::from_bytes(id.bytes()), id) << type;
  }
}

TEST(PeerIdTest, ReadsEveryTextFormOfTheSamePeer) {
  const auto id = PeerId::from_text(kEd25519);
  ASSERT_TRUE(id);
  EXPECT_EQ(PeerId::from_text("bafzaajaiaejcahwr5d5ofrfbis4l5d6uwr57hu5tjodrypfm6yaq6dsc2r2pzyt6"), id);
  EXPECT_EQ(PeerId::from_text("k51qzi5uqu5dgy8qsq67hbz73jqkw87l3fgf4a91qb0d9b5173tir7n4vxk1oe"), id);
  EXPECT_EQ(PeerId::from_text("z5AanNVJCxnGuh8TJu4nye3dE3NbxAd8FB9cr46uVagyFPuibMxok2R"), id);
  const auto hashed = PeerId::from_text("bafzbeie5745rpv2m6tjyuugywy4d5ewrqgqqhfnf445he3omzpjbx5xqxe");
  ASSERT_TRUE(hashed);
  EXPECT_EQ(hashed->text(), kSha256);
  EXPECT_EQ(to_hex(hashed->bytes()), "12209dff3b17d74cf4d38a50d8b6383e92d181a10395a5e73a726dcccbd21bf6f0b9");
}

TEST(PeerIdTest, RefusesBytesThatAreNoPeer) {
  const std::string hash32(64, '1');
  for (const std::string& bad : {std::string(), std::string("00"), std::string("0000"), std::string("1220"),
                                 "1220" + hash32 + "11",         // too long
                                 "1220" + hash32.substr(2),      // cut short
                                 "121f" + hash32.substr(2),      // not 32 bytes
                                 "1320" + hash32,                // another hash
                                 "12a000" + hash32,              // a longer varint than needed
                                 "002b" + std::string(86, '1'),  // an identity of 43 bytes
                                 "0003" + std::string("1111")}) {
    EXPECT_FALSE(PeerId::from_bytes(from_hex(bad))) << bad;
  }
}

TEST(PeerIdTest, RefusesTextThatIsNoPeer) {
  const std::string good = kEd25519;
  for (const std::string& bad :
       {std::string(), std::string("1"), std::string("Qm"), good + "1", good.substr(1), good + " ", "/p2p/" + good,
        std::string("bafybeie5745rpv2m6tjyuugywy4d5ewrqgqqhfnf445he3omzpjbx5xqxe"),  // a CID of data, not of a key
        std::string("k"), std::string("z"), std::string("b"), std::string(100'000, '1'), std::string(100'000, 'b')}) {
    EXPECT_FALSE(PeerId::from_text(bad)) << bad.substr(0, 80);
  }
}

TEST(PeerIdTest, SortsByBytesAndPrintsItsEnd) {
  const auto a = *PeerId::from_text(kEd25519);
  const auto b = *PeerId::from_text(kSha256);
  EXPECT_LT(a, b);
  EXPECT_LT(PeerId(), a);
  EXPECT_TRUE(PeerId().empty());
  EXPECT_EQ(std::hash<PeerId>{}(a), std::hash<PeerId>{}(*PeerId::from_bytes(a.bytes())));
}

}  // namespace
}  // namespace cohive
