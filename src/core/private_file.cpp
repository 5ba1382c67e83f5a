#include "core/detail/private_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"

namespace cohive {
namespace {

/// Why a file is none to keep a secret in; empty when it is.
std::string objection_to(const struct stat& status) {
  if (S_ISDIR(status.st_mode)) return "is a folder: name a file in it";
  if (!S_ISREG(status.st_mode)) return "is a pipe or a device: write the content into a file";
  if (status.st_uid != ::geteuid() && status.st_uid != 0)
    return "belongs to another user of this machine, who can change it: chown it to the user that runs this program";
  if ((status.st_mode & S_IRWXO) != 0) return "every user of this machine can read or change it: chmod 400";
  return {};
}

}  // namespace

Result<PrivateFile> PrivateFile::open(const std::filesystem::path& path, const std::string& name) {
  const std::string named = name + " " + path.string();
  // Without O_NONBLOCK a pipe would keep us until somebody writes to it.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (file < 0 && errno == ELOOP) return Error(Errc::io, named + ": is a symbolic link: name the file itself");
  if (file < 0) return system_error(Errc::io, errno, named);
  PrivateFile opened(file, named);
  struct stat status{};
  if (::fstat(file, &status) != 0) return system_error(Errc::io, errno, named);
  if (const auto objection = objection_to(status); !objection.empty()) return Error(Errc::io, named + ": " + objection);
  return opened;
}

PrivateFile::PrivateFile(PrivateFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)), name_(std::move(other.name_)) {}

PrivateFile::~PrivateFile() {
  if (file_ >= 0) ::close(file_);
}

Result<std::string> PrivateFile::read(std::size_t most) const {
  std::string content(most + 1, '\0');
  std::size_t size = 0;
  while (size < content.size()) {
    const auto count = ::pread(file_, content.data() + size, content.size() - size, static_cast<off_t>(size));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(Errc::io, errno, name_);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size > most) return Error(Errc::io, name_ + ": is longer than " + std::to_string(most) + " bytes");
  content.resize(size);
  return content;
}

bool PrivateFile::lock() const {
  if (::flock(file_, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  log::debug("core", "no lock on {}: {}", name_, std::strerror(errno));
  return true;
}

}  // namespace cohive
