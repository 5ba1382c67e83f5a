// The identity file: exactly a serialised PrivateKey, mode 0400. Source: docs/wire/libp2p.md, section 1.5.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/core/try.hpp"
#include "core/detail/private_file.hpp"

namespace cohive {
namespace {

constexpr std::size_t kMaxFile = 64 * 1024;
const std::string kName = "identity file";

Error file_error(const std::filesystem::path& path, std::string_view what) {
  return Error(Errc::io, kName + " " + path.string() + ": " + std::string(what));
}

Result<KeyPair> key_in(const PrivateFile& file, const std::filesystem::path& path) {
  TRY(const auto content, file.read(kMaxFile));
  auto pair = KeyPair::from_protobuf(as_bytes(content));
  if (!pair) return pair.error().with_context(kName + " " + path.string());
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
  if (file < 0) return system_error(Errc::io, errno, kName + " " + path.string());
  const bool written =
      ::write(file, content.data(), content.size()) == static_cast<ssize_t>(content.size()) && ::fsync(file) == 0;
  const int write_error = errno;
  ::close(file);
  const bool linked = written && ::link(temporary.c_str(), path.c_str()) == 0;
  const int link_error = errno;
  ::unlink(temporary.c_str());
  if (!written) return system_error(Errc::io, write_error, kName + " " + path.string());
  if (!linked && link_error != EEXIST) return system_error(Errc::io, link_error, kName + " " + path.string());
  return ok();
}

Result<PrivateFile> open_or_create(const std::filesystem::path& path, KeyType create_type) {
  std::error_code error;
  if (std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::not_found)
    return PrivateFile::open(path, kName);
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (!std::filesystem::is_directory(folder, error)) return file_error(path, "its directory does not exist");
  const KeyPair fresh = create_type == KeyType::rsa ? KeyPair::generate_rsa() : KeyPair::generate_ed25519();
  TRY(save(path, fresh.protobuf()));
  return PrivateFile::open(path, kName);
}

}  // namespace

Result<KeyPair> load_or_create_identity(const std::filesystem::path& path, KeyType create_type) {
  TRY(const auto file, open_or_create(path, create_type));
  return key_in(file, path);
}

Result<HeldIdentity> hold_identity(const std::filesystem::path& path, KeyType create_type) {
  TRY(auto file, open_or_create(path, create_type));
  TRY(auto key, key_in(file, path));
  if (!file.lock()) return Error(Errc::in_use, kName + " " + path.string());
  return HeldIdentity{std::move(key), std::make_shared<PrivateFile>(std::move(file))};
}

}  // namespace cohive
