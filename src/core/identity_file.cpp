// The identity file: exactly a serialised PrivateKey, mode 0400. Source: docs/wire/libp2p.md, section 1.5.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/core/log.hpp"
#include "private_file.hpp"

namespace cohive {
namespace {

constexpr std::uintmax_t kMaxFile = 64 * 1024;

Error file_error(const std::filesystem::path& path, std::string_view what) {
  return Error(Errc::io, "identity file " + path.string() + ": " + std::string(what));
}

Result<KeyPair> load(const std::filesystem::path& path) {
  if (is_open_to_all(path))
    return file_error(path, "every user of this machine can read it, and pass for this peer: chmod 400");
  std::error_code error;
  if (std::filesystem::file_size(path, error) > kMaxFile || error) return file_error(path, "not a readable key file");
  std::ifstream file(path, std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(file)), {});
  if (!file && !file.eof()) return file_error(path, "cannot be read");
  auto pair = KeyPair::from_protobuf(as_bytes(content));
  if (!pair) return pair.error().with_context("identity file " + path.string());
  return pair;
}

/// Written to a temporary name and linked into place, so that a crash never leaves half a key and an existing file
/// wins.
Result<> save(const std::filesystem::path& path, const std::string& content) {
  // Not the process id: in a container it is the same after every crash.
  std::array<std::uint8_t, 8> unique;
  crypto::random_bytes(unique);
  const std::string temporary = path.string() + ".new." + to_hex(unique);
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
  if (file < 0) return file_error(path, std::strerror(errno));
  const bool written =
      ::write(file, content.data(), content.size()) == static_cast<ssize_t>(content.size()) && ::fsync(file) == 0;
  const int write_error = errno;
  ::close(file);
  const bool linked = written && ::link(temporary.c_str(), path.c_str()) == 0;
  const int link_error = errno;
  ::unlink(temporary.c_str());
  if (!written) return file_error(path, std::strerror(write_error));
  if (!linked && link_error != EEXIST) return file_error(path, std::strerror(link_error));
  return ok();
}

}  // namespace

Result<KeyPair> load_or_create_identity(const std::filesystem::path& path, KeyType create_type) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    if (error) return file_error(path, error.message());
    const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    if (!std::filesystem::is_directory(folder, error)) return file_error(path, "its directory does not exist");
    const KeyPair fresh = create_type == KeyType::rsa ? KeyPair::generate_rsa() : KeyPair::generate_ed25519();
    if (auto saved = save(path, fresh.protobuf()); !saved) return saved.error();
  }
  return load(path);
}

Result<HeldIdentity> hold_identity(const std::filesystem::path& path, KeyType create_type) {
  auto key = load_or_create_identity(path, create_type);
  if (!key) return key.error();
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return file_error(path, std::strerror(errno));
  const std::shared_ptr<int> lock(new int(file), [](int* held) {
    ::close(*held);
    delete held;
  });
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) return HeldIdentity{std::move(*key), lock};
  if (errno == EWOULDBLOCK) return Error(Errc::in_use, "identity file " + path.string());
  log::debug("core", "no lock on identity file {}: {}", path.string(), std::strerror(errno));
  return HeldIdentity{std::move(*key), nullptr};
}

}  // namespace cohive
