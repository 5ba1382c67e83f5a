#include "cohive/dht/members.hpp"

#include <sys/stat.h>

#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <unordered_set>

#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/try.hpp"
#include "core/detail/private_file.hpp"

namespace cohive::dht {
namespace {

constexpr double kTokenSeconds = 3600;
constexpr double kClockSeconds = 120;   // between the clocks of two members
constexpr Duration kPollInterval = 2s;  // at the file
constexpr std::uintmax_t kMaxListBytes = 16 << 20;
constexpr int kStretching = 200'000;
constexpr std::string_view kSalt = "cohive members";
constexpr std::size_t kMaxProof = 4096;
constexpr std::size_t kMaxSecretBytes = 64 * 1024;

/// Renews its token in time, and checks what all tokens have in common: they name the peer that shows them, and end.
class NamedMembers : public Authorizer {
 public:
  NamedMembers(Runtime& runtime, PeerId self, std::shared_ptr<const RsaSignatureValidator> key)
      : Authorizer(std::move(key)), runtime_(runtime), self_(self) {}

  AccessToken token() final {
    const double now = runtime_.wall_time();
    // The clock may have been ahead when it was made.
    if (now + kTokenSeconds / 2 < expires_ && expires_ <= now + kTokenSeconds) return token_;
    expires_ = now + kTokenSeconds;
    token_ = {self_.text(), key().public_key(), std::to_string(static_cast<std::uint64_t>(expires_)), {}};
    token_.signature = proof(text_of(token_));
    return token_;
  }

  bool is_valid(const AccessToken& token, const PeerId& sender) const final {
    if (token.username != sender.text() || token.signature.size() > kMaxProof) return false;
    std::uint64_t expires = 0;
    const char* const last = token.expiration_time.data() + token.expiration_time.size();
    const auto [end, error] = std::from_chars(token.expiration_time.data(), last, expires);
    const double left = static_cast<double>(expires) - runtime_.wall_time();
    if (error != std::errc() || end != last || left < -kClockSeconds || left > kTokenSeconds + kClockSeconds)
      return false;
    return proves(sender, text_of(token), token.signature);
  }

 protected:
  virtual std::string proof(const std::string& text) const = 0;
  virtual bool proves(const PeerId& sender, const std::string& text, const std::string& proof) const = 0;
  Runtime& runtime_;

 private:
  static std::string text_of(const AccessToken& token) {
    return "cohive member\n" + token.username + "\n" + token.public_key + "\n" + token.expiration_time;
  }
  PeerId self_;
  double expires_ = 0;
  AccessToken token_;
};

// ---- A secret

class SecretMembers final : public NamedMembers {
 public:
  SecretMembers(Runtime& runtime, std::string_view secret, PeerId self,
                std::shared_ptr<const RsaSignatureValidator> key)
      : NamedMembers(runtime, self, std::move(key)),
        stretched_(crypto::stretched(as_bytes(secret), as_bytes(kSalt), kStretching)) {}

 private:
  std::string proof(const std::string& text) const override {
    return crypto::base64_encode(crypto::hmac_sha256(stretched_, as_bytes(text)));
  }
  bool proves(const PeerId&, const std::string& text, const std::string& shown) const override {
    return crypto::equal_secrets(shown, proof(text));
  }
  crypto::Key32 stretched_;
};

// ---- A list

using Peers = std::unordered_set<PeerId>;

Error list_error(cohive::Errc code, const std::filesystem::path& path, std::string what) {
  return Error(code, "list of members " + path.string() + ": " + std::move(what));
}

Result<Peers> read_list(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::file_size(path, error) > kMaxListBytes || error)
    return error ? system_error(cohive::Errc::io, error.value(), "list of members " + path.string())
                 : list_error(cohive::Errc::io, path, "too large");
  std::ifstream file(path);
  Peers peers;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    std::string first;
    if (!(words >> first) || first.front() == '#') continue;
    const auto peer = PeerId::from_text(first);
    if (!peer) return list_error(cohive::Errc::malformed, path, log::format("line {} begins with no peer id", number));
    peers.insert(*peer);
  }
  if (!file.eof()) return list_error(cohive::Errc::io, path, "cannot be read");
  return peers;
}

/// By what a change of the file is noticed, a new one in its place included.
struct Version {
  std::int64_t seconds = 0, nanoseconds = 0, size = -1;
  std::uint64_t inode = 0;
  bool operator==(const Version&) const = default;
};
Version version_of(const std::filesystem::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return {};
  return {status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_size, status.st_ino};
}

/// The list as it was read last; its readers and the task that looks at the file share it. Loop thread only.
struct MemberList {
  std::filesystem::path path;
  Peers peers;
  Version version;
};

struct Reading {
  Version version;
  std::optional<Result<Peers>> peers;  ///< unset: the file is as it was
};

Reading read_if_changed(const std::filesystem::path& path, const Version& known) {
  Reading reading{version_of(path), {}};
  if (reading.version != known) reading.peers = read_list(path);
  return reading;
}

/// Looks at the file again and again, as long as the list is used. A file system may be slow: not on the loop.
Task<void> follow(Runtime& runtime, std::weak_ptr<MemberList> followed) {
  for (;;) {
    co_await runtime.sleep_for(kPollInterval);
    std::filesystem::path path;
    Version known;
    if (const auto list = followed.lock()) {
      path = list->path;
      known = list->version;
    } else {
      co_return;
    }
    Reading reading =
        co_await runtime.offload_io([path = std::move(path), known] { return read_if_changed(path, known); });
    const auto list = followed.lock();
    if (!list) co_return;
    list->version = reading.version;
    if (!reading.peers) continue;
    if (*reading.peers) {
      list->peers = std::move(**reading.peers);
      log::info("dht", "{} members are listed in {}", list->peers.size(), list->path.string());
    } else {
      log::warn("dht", "the members stay as they were: {}", reading.peers->error());
    }
  }
}

class ListedMembers final : public NamedMembers {
 public:
  ListedMembers(Runtime& runtime, std::filesystem::path path, KeyPair identity,
                std::shared_ptr<const RsaSignatureValidator> key)
      : NamedMembers(runtime, identity.peer_id(), std::move(key)), identity_(std::move(identity)) {
    list_->path = std::move(path);
  }

  /// Before anything is served: on the caller's thread.
  Result<> load() {
    list_->version = version_of(list_->path);
    auto peers = read_list(list_->path);
    if (!peers) return peers.error();
    list_->peers = std::move(*peers);
    if (!list_->peers.contains(identity_.peer_id()))
      log::warn("dht", "this peer, {}, is not in the list of members {}: members with the same list refuse it",
                identity_.peer_id(), list_->path.string());
    runtime_.post([&runtime = runtime_, list = std::weak_ptr(list_)] {
      runtime.background().spawn(follow(runtime, list), "follow the list of members");
    });
    return ok();
  }

 private:
  std::string proof(const std::string& text) const override {
    return crypto::base64_encode(as_bytes(identity_.public_key().protobuf())) + "." +
           crypto::base64_encode(identity_.sign(as_bytes(text)));
  }

  bool proves(const PeerId& sender, const std::string& text, const std::string& shown) const override {
    if (!list_->peers.contains(sender)) return false;
    const auto dot = shown.find('.');
    if (dot == std::string::npos) return false;
    const auto key = crypto::base64_decode(std::string_view(shown).substr(0, dot));
    const auto signature = crypto::base64_decode(std::string_view(shown).substr(dot + 1));
    if (!key || !signature) return false;
    const auto identity = PublicKey::from_protobuf(*key);
    return identity && identity->peer_id() == sender && identity->verify(as_bytes(text), *signature);
  }

  const KeyPair identity_;
  const std::shared_ptr<MemberList> list_ = std::make_shared<MemberList>();
};

}  // namespace

Result<std::shared_ptr<Authorizer>> members_by_secret(Runtime& runtime, std::string_view secret, PeerId self,
                                                      std::shared_ptr<const RsaSignatureValidator> key) {
  if (secret.size() < kLeastSecret)
    return Error(cohive::Errc::invalid_argument,
                 log::format("the secret of a swarm needs {} characters or more, random ones best", kLeastSecret));
  return std::shared_ptr<Authorizer>(std::make_shared<SecretMembers>(runtime, secret, self, std::move(key)));
}

Result<std::shared_ptr<Authorizer>> members_by_list(Runtime& runtime, std::filesystem::path list, KeyPair identity,
                                                    std::shared_ptr<const RsaSignatureValidator> key) {
  auto members = std::make_shared<ListedMembers>(runtime, std::move(list), std::move(identity), std::move(key));
  if (auto loaded = members->load(); !loaded) return loaded.error();
  return std::shared_ptr<Authorizer>(std::move(members));
}

Result<> check_members(const MembersOptions& options) {
  if (!options.secret_file.empty() && !options.members_file.empty())
    return Error(cohive::Errc::invalid_argument, "members are those of a secret or those of a list, not both");
  if (!options.members_file.empty()) TRY(read_list(options.members_file));
  if (!options.secret_file.empty()) TRY(read_secret(options.secret_file));
  return ok();
}

Result<std::shared_ptr<Authorizer>> make_authorizer(Runtime& runtime, const MembersOptions& options, KeyPair identity,
                                                    std::shared_ptr<const RsaSignatureValidator> key) {
  if (!options.secret_file.empty() && !options.members_file.empty())
    return Error(cohive::Errc::invalid_argument, "members are those of a secret or those of a list, not both");
  if (!options.members_file.empty())
    return members_by_list(runtime, options.members_file, std::move(identity), std::move(key));
  if (options.secret_file.empty()) return std::shared_ptr<Authorizer>();
  const auto secret = read_secret(options.secret_file);
  if (!secret) return secret.error();
  return members_by_secret(runtime, *secret, identity.peer_id(), std::move(key));
}

Result<std::string> read_secret(const std::filesystem::path& path) {
  TRY(const auto file, PrivateFile::open(path, "secret file"));
  TRY(const auto text, file.read(kMaxSecretBytes));
  constexpr const char* kSpace = " \t\r\n";
  const auto first = text.find_first_not_of(kSpace);
  if (first == std::string::npos) return Error(cohive::Errc::io, "secret file " + path.string() + ": empty");
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace cohive::dht
