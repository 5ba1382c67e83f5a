// Identity keys and identity files. Vectors: docs/wire/libp2p.md, sections 1.3, 1.5 and 11.
#include "cohive/core/keys.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "cohive/core/errors.hpp"
#include "core/vectors.hpp"

namespace cohive {
namespace {

namespace fs = std::filesystem;
using testing::hex_of;
using testing::libp2p_vectors;
using testing::text_of;

class IdentityFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "cohive-identity-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, ByteView content) {
    std::ofstream(folder_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
    fs::permissions(folder_ / name, fs::perms::owner_read | fs::perms::owner_write);
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST(PublicKeyTest, ReadsEveryTypeAndNamesItsPeer) {
  const std::pair<const char*, KeyType> types[] = {{"rsa", KeyType::rsa},
                                                   {"ed25519", KeyType::ed25519},
                                                   {"secp256k1", KeyType::secp256k1},
                                                   {"ecdsa", KeyType::ecdsa}};
  for (const auto& [name, type] : types) {
    const auto& vector = libp2p_vectors()["keys"][name];
    const auto key = PublicKey::from_protobuf(hex_of(vector["public"]));
    ASSERT_TRUE(key) << key.error();
    EXPECT_EQ(key->type(), type);
    EXPECT_EQ(key->peer_id().text(), text_of(vector["peer_id"]));
    EXPECT_EQ(to_hex(as_bytes(key->protobuf())), text_of(vector["public"]));
  }
}

TEST(PublicKeyTest, VerifiesForeignSignaturesOfEveryType) {
  for (const auto& vector : libp2p_vectors()["signatures"]) {
    const auto key = PublicKey::from_protobuf(hex_of(vector["public"]));
    ASSERT_TRUE(key) << key.error();
    const Bytes message = hex_of(vector["message"]);
    const Bytes signature = hex_of(vector["signature"]);
    EXPECT_EQ(key->verify(message, signature), vector["valid"].get<bool>()) << vector["name"];
    if (!vector["valid"].get<bool>()) continue;
    EXPECT_EQ(key->peer_id().text(), text_of(vector["peer_id"]));
    Bytes other = message;
    other[0] ^= 1;
    EXPECT_FALSE(key->verify(other, signature)) << vector["name"];
    Bytes forged = signature;
    forged[forged.size() / 2] ^= 1;
    EXPECT_FALSE(key->verify(message, forged)) << vector["name"];
    EXPECT_FALSE(key->verify(message, ByteView(signature).first(signature.size() - 1))) << vector["name"];
    EXPECT_FALSE(key->verify(message, {})) << vector["name"];
  }
}

TEST(PublicKeyTest, RefusesKeysThatAreMalformedWeakOrCostly) {
  for (const auto& [name, hex] : libp2p_vectors()["refused_public_keys"].items()) {
    const auto key = PublicKey::from_protobuf(hex_of(hex));
    EXPECT_FALSE(key) << name;
    if (key || !name.starts_with("rsa")) continue;
    EXPECT_EQ(key.error(), Errc::limit_exceeded) << name;
  }
  EXPECT_FALSE(PublicKey::from_protobuf(Bytes(1 << 20, 0x0a)));
}

TEST(PublicKeyTest, AMalformedKeyPrintsNothing) {
  ::testing::internal::CaptureStderr();
  for (const char* hex : {"", "1220", "0801", "ffffffff"}) EXPECT_FALSE(PublicKey::from_protobuf(from_hex(hex)));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(PublicKeyTest, RefusesADerKeyWithBytesBehindIt) {
  // The lengths of the vector grow by one: two bytes of varint at offset 3, and a zero at the end.
  Bytes rsa = hex_of(libp2p_vectors()["keys"]["rsa"]["public"]);
  ASSERT_TRUE(PublicKey::from_protobuf(rsa));
  rsa[3] = static_cast<std::uint8_t>(rsa[3] + 1);
  rsa.push_back(0);
  EXPECT_FALSE(PublicKey::from_protobuf(rsa));
}

TEST(KeyPairTest, Ed25519OfASeedIsTheVectorsKey) {
  const auto& vector = libp2p_vectors()["keys"]["ed25519"];
  const Bytes file = hex_of(vector["private"]);
  const KeyPair pair = KeyPair::ed25519_from_seed(ByteView(file).subspan(4, 32));
  EXPECT_EQ(to_hex(as_bytes(pair.protobuf())), text_of(vector["private"]));
  EXPECT_EQ(pair.peer_id().text(), text_of(vector["peer_id"]));
  const Bytes signature = pair.sign(as_bytes("hello"));
  EXPECT_EQ(signature.size(), 64u);
  EXPECT_TRUE(pair.public_key().verify(as_bytes("hello"), signature));
  EXPECT_FALSE(pair.public_key().verify(as_bytes("hellO"), signature));
  EXPECT_FALSE(KeyPair::generate_ed25519().public_key().verify(as_bytes("hello"), signature));
  EXPECT_THROW(KeyPair::ed25519_from_seed(Bytes(31)), std::invalid_argument);
}

TEST(KeyPairTest, RsaSignsTheSameBytesAsPython) {
  const auto& vectors = libp2p_vectors();
  const auto pair = KeyPair::from_protobuf(hex_of(vectors["keys"]["rsa"]["private"]));
  ASSERT_TRUE(pair) << pair.error();
  EXPECT_EQ(pair->peer_id().text(), text_of(vectors["keys"]["rsa"]["peer_id"]));
  EXPECT_EQ(to_hex(pair->sign(as_bytes("hello"))), text_of(vectors["signatures"].back()["signature"]));
  EXPECT_EQ(to_hex(as_bytes(pair->protobuf())), text_of(vectors["keys"]["rsa"]["private"]));
}

TEST(KeyPairTest, TwoKeysAreNeverTheSame) {
  EXPECT_NE(KeyPair::generate_ed25519().peer_id(), KeyPair::generate_ed25519().peer_id());
}

TEST(KeyPairTest, ReadsTheOld96ByteFormIfItsHalvesAgree) {
  const Bytes file = hex_of(libp2p_vectors()["keys"]["ed25519"]["private"]);
  const ByteView data = ByteView(file).subspan(4);
  Bytes old = from_hex("08011260");
  old.insert(old.end(), data.begin(), data.end());
  old.insert(old.end(), data.begin() + 32, data.end());
  const auto pair = KeyPair::from_protobuf(old);
  ASSERT_TRUE(pair) << pair.error();
  EXPECT_EQ(pair->peer_id().text(), text_of(libp2p_vectors()["keys"]["ed25519"]["peer_id"]));
  old.back() ^= 1;
  EXPECT_FALSE(KeyPair::from_protobuf(old));
}

TEST(KeyPairTest, RefusesWhatItCannotSignWithAndWhatIsNoKey) {
  const auto& keys = libp2p_vectors()["keys"];
  EXPECT_EQ(KeyPair::from_protobuf(hex_of(keys["secp256k1"]["private"])).error(), Errc::invalid_argument);
  EXPECT_EQ(KeyPair::from_protobuf(hex_of(keys["ecdsa"]["private"])).error(), Errc::invalid_argument);
  Bytes mismatched = hex_of(keys["ed25519"]["private"]);
  mismatched.back() ^= 1;
  EXPECT_FALSE(KeyPair::from_protobuf(mismatched));
  EXPECT_FALSE(KeyPair::from_protobuf({}));
  EXPECT_FALSE(KeyPair::from_protobuf(as_bytes("not a key")));
  EXPECT_FALSE(KeyPair::from_protobuf(Bytes(1 << 20)));
}

TEST_F(IdentityFile, IsCreatedOnceAndReadEverAfter) {
  for (const KeyType type : {KeyType::ed25519, KeyType::rsa}) {
    const fs::path path = folder_ / (type == KeyType::rsa ? "rsa" : "ed25519");
    const auto created = load_or_create_identity(path, type);
    ASSERT_TRUE(created) << created.error();
    EXPECT_EQ(created->public_key().type(), type);
    const auto again = load_or_create_identity(path, KeyType::ed25519);
    ASSERT_TRUE(again) << again.error();
    EXPECT_EQ(again->peer_id(), created->peer_id());
    struct stat status{};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0400u);
  }
  EXPECT_EQ(files(), 2u) << "no temporary file is left behind";
}

TEST_F(IdentityFile, ThatEverybodyCanReadIsRefused) {
  const auto key = load_or_create_identity(folder_ / "key");
  ASSERT_TRUE(key);
  for (const fs::perms mode : {fs::perms(0404), fs::perms(0644), fs::perms(0402)}) {
    fs::permissions(folder_ / "key", mode);
    const auto refused = load_or_create_identity(folder_ / "key");
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find("chmod"), std::string::npos) << refused.error();
  }
  fs::permissions(folder_ / "key", fs::perms(0440));
  EXPECT_TRUE(load_or_create_identity(folder_ / "key")) << "a group is its owner's choice";
}

TEST_F(IdentityFile, ThatPythonHivemindWroteIsRead) {
  const auto& vector = libp2p_vectors()["hivemind_identity"];
  write("python", hex_of(vector["file"]));
  const auto pair = load_or_create_identity(folder_ / "python");
  ASSERT_TRUE(pair) << pair.error();
  EXPECT_EQ(pair->peer_id().text(), text_of(vector["peer_id"]));
  EXPECT_EQ(to_hex(as_bytes(pair->protobuf())), text_of(vector["file"])) << "written back, Python reads it again";
}

TEST_F(IdentityFile, InPkcs8FormIsRefusedByName) {
  write("pkcs8", hex_of(libp2p_vectors()["hivemind_identity"]["pkcs8_file"]));
  const auto pair = load_or_create_identity(folder_ / "pkcs8");
  ASSERT_FALSE(pair);
  EXPECT_NE(pair.error().message().find("PKCS#1"), std::string::npos) << pair.error();
  EXPECT_NE(pair.error().message().find((folder_ / "pkcs8").string()), std::string::npos) << pair.error();
}

TEST_F(IdentityFile, ThatIsDamagedIsAnErrorAndStaysAsItWas) {
  const Bytes good = hex_of(libp2p_vectors()["hivemind_identity"]["file"]);
  write("empty", {});
  write("cut", ByteView(good).first(good.size() / 2));
  write("text", as_bytes("-----BEGIN RSA PRIVATE KEY-----"));
  write("huge", Bytes(100'000));
  fs::create_directory(folder_ / "directory");
  for (const char* name : {"empty", "cut", "text", "huge", "directory"}) {
    const auto pair = load_or_create_identity(folder_ / name);
    ASSERT_FALSE(pair) << name;
    EXPECT_NE(pair.error().message().find(name), std::string::npos) << pair.error();
  }
  EXPECT_EQ(fs::file_size(folder_ / "cut"), good.size() / 2);
}

TEST_F(IdentityFile, IsAFileOfOurOwnAndNothingElse) {
  const auto says = [this](const char* name) {
    const auto pair = load_or_create_identity(folder_ / name);
    return pair ? std::string("taken") : pair.error().message();
  };
  using ::testing::HasSubstr;
  ASSERT_TRUE(load_or_create_identity(folder_ / "good"));
  fs::create_directory(folder_ / "directory");
  EXPECT_THAT(says("directory"), HasSubstr("is a folder"));
  fs::create_symlink("good", folder_ / "link");
  EXPECT_THAT(says("link"), HasSubstr("is a symbolic link"));
  fs::create_symlink("nothing", folder_ / "dangling");
  EXPECT_THAT(says("dangling"), HasSubstr("is a symbolic link"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(says("pipe"), HasSubstr("is a pipe or a device"));
  EXPECT_THAT(load_or_create_identity("/dev/null").error().message(), HasSubstr("is a pipe or a device"));
  for (const auto mode : {0404, 0602, 0666, 0401}) {
    fs::permissions(folder_ / "good", static_cast<fs::perms>(mode));
    EXPECT_THAT(says("good"), HasSubstr("chmod 400")) << mode;
  }
  fs::permissions(folder_ / "good", static_cast<fs::perms>(0440));
  EXPECT_EQ(says("good"), "taken");
  if (::geteuid() != 0) return;  // only root gives files away
  ASSERT_EQ(::chown((folder_ / "good").c_str(), 4242, 4242), 0);
  EXPECT_THAT(says("good"), HasSubstr("belongs to another user"));
}

TEST_F(IdentityFile, OneHolderAtATime) {
  const auto path = folder_ / "held";
  auto first = hold_identity(path);
  ASSERT_TRUE(first) << first.error();
  const auto second = hold_identity(path);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error(), Errc::in_use);
  EXPECT_NE(second.error().message().find(path.string()), std::string::npos);
  EXPECT_TRUE(load_or_create_identity(path)) << "whoever only looks may";
  const auto copy = first->lock;
  first = Error(Errc::closed);
  EXPECT_FALSE(hold_identity(path));
}

TEST_F(IdentityFile, IsFreeAgainWhenItsHolderHasGone) {
  const auto path = folder_ / "held";
  const PeerId id = hold_identity(path)->key.peer_id();
  const auto again = hold_identity(path);
  ASSERT_TRUE(again) << again.error();
  EXPECT_EQ(again->key.peer_id(), id);
}

TEST_F(IdentityFile, InAMissingDirectoryIsAClearError) {
  const auto pair = load_or_create_identity(folder_ / "nowhere" / "key");
  ASSERT_FALSE(pair);
  EXPECT_NE(pair.error().message().find("directory does not exist"), std::string::npos) << pair.error();
  EXPECT_FALSE(fs::exists(folder_ / "nowhere"));
}

TEST_F(IdentityFile, CreatedByManyAtOnceIsTheSameForAll) {
  std::vector<PeerId> peers(8);
  {
    std::vector<std::jthread> threads;
    for (auto& peer : peers) {
      threads.emplace_back([&peer, this] {
        if (const auto pair = load_or_create_identity(folder_ / "shared")) peer = pair->peer_id();
      });
    }
  }
  EXPECT_FALSE(peers[0].empty());
  for (const auto& peer : peers) EXPECT_EQ(peer, peers[0]);
  EXPECT_EQ(files(), 1u);
}

}  // namespace
}  // namespace cohive
