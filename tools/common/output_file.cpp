#include "common/output_file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <system_error>
#include <vector>

#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "common/program.hpp"
#include "common/signals.hpp"

namespace cohive::tools {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kMode = 0666;  // less what the umask takes away

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// Opens a new file in the folder of another one, to be renamed to it. -1: errno says why not.
int open_beside(const fs::path& path, fs::path& name) {
  std::random_device random;
  name = folder_of(path) / log::format(".cohive-{:08x}", static_cast<unsigned>(random()));
  return ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kMode);
}

/// Writes all of it. False: errno says why not.
bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    if (!wait_until_ready(descriptor, POLLOUT)) {
      errno = ETIMEDOUT;
      return false;
    }
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count >= 0)
      text.remove_prefix(static_cast<std::size_t>(count));
    else if (errno != EINTR && errno != EAGAIN)
      return false;
  }
  return true;
}

bool write_all(int descriptor, std::span<const std::string_view> pieces) {
  for (const std::string_view piece : pieces)
    if (!write_all(descriptor, piece)) return false;
  return true;
}

/// Whether an error means that a folder takes no new files, and not that the disk is full.
bool no_new_files(int error) {
  return error == EACCES || error == EPERM || error == EROFS;
}

/// Which of the standard streams the file is; -1: none.
int standard_stream(const struct stat& facts) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own{};
    if (::fstat(stream, &own) == 0 && own.st_dev == facts.st_dev && own.st_ino == facts.st_ino) return stream;
  }
  return -1;
}

}  // namespace

OutputFile::OutputFile(std::string flag, std::string path) : flag_(std::move(flag)), path_(std::move(path)) {
  if (path_.empty()) return;
  struct stat facts{};
  if (::stat(path_.c_str(), &facts) == 0) {
    if (S_ISDIR(facts.st_mode)) refuse("it is a folder");
    if (S_ISSOCK(facts.st_mode) || S_ISBLK(facts.st_mode)) refuse("it is no file");
    if (S_ISREG(facts.st_mode) && standard_stream(facts) < 0)
      open_regular();
    else
      open_special(facts.st_mode);
    return;
  }
  const int error = errno;
  if (error != ENOENT) refuse(error);
  if (::lstat(path_.c_str(), &facts) == 0) refuse("it is a link to nowhere");
  if (path_.ends_with('/')) refuse("there is no such folder");
  target_ = path_;
  try_folder(false);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::swap(OutputFile& other) noexcept {
  std::swap(flag_, other.flag_);
  std::swap(path_, other.path_);
  std::swap(target_, other.target_);
  std::swap(how_, other.how_);
  std::swap(descriptor_, other.descriptor_);
}

void OutputFile::refuse(const std::string& why) const {
  throw Exit{kBadInput, flag_ + ": cannot write " + path_ + ": " + why};
}

/// A disk without room may have room again; a path that is wrong stays wrong.
void OutputFile::refuse(int error) const {
  if (may_pass(error)) fail(error);
  refuse(std::strerror(error));
}

void OutputFile::fail(int error) const {
  throw Exit{kFailed, flag_ + ": cannot write " + path_ + ": " + std::strerror(error)};
}

// ---- The trial

/// What is written as it comes: a pipe, a device, or the file to which our own output goes.
void OutputFile::open_special(unsigned mode) {
  // O_NONBLOCK: the open of a pipe would wait for its reader.
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (descriptor_ < 0 && errno == ENXIO) refuse("nobody reads from it");
  if (descriptor_ < 0) refuse(errno);
  // A device that is full says so of no bytes, too, and stays full.
  if (S_ISCHR(mode) && ::write(descriptor_, "", 0) < 0) refuse(std::strerror(errno));
  how_ = How::appended;
}

void OutputFile::open_regular() {
  const int file = ::open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) refuse(errno);
  ::close(file);
  std::error_code error;
  target_ = fs::canonical(path_, error).string();
  if (error) refuse(error.message());
  try_folder(true);
}

void OutputFile::try_folder(bool exists) {
  fs::path name;
  const int file = open_beside(target_, name);
  if (file < 0 && exists && no_new_files(errno)) {
    how_ = How::in_place;
    return;
  }
  if (file < 0) refuse(errno);
  const bool written = write_all(file, "\n") && ::fsync(file) == 0;
  const int error = errno;
  ::close(file);
  ::unlink(name.c_str());
  if (!written) refuse(error);
  how_ = How::replaced;
}

// ---- The end

void OutputFile::write(std::span<const std::string_view> pieces) const {
  switch (how_) {
    case How::not_at_all:
      return;
    case How::appended:
      if (!write_all(descriptor_, pieces)) fail(errno);
      return;
    case How::replaced:
      if (replace(pieces)) return;
      [[fallthrough]];  // a file that is mounted by itself
    case How::in_place:
      write_in_place(pieces);
  }
}

/// False where the file cannot be exchanged for another one.
bool OutputFile::replace(std::span<const std::string_view> pieces) const {
  fs::path name;
  const int file = open_beside(target_, name);
  if (file < 0 && no_new_files(errno)) return false;
  if (file < 0) fail(errno);
  auto cleanup = on_exit([&] { ::unlink(name.c_str()); });
  struct stat before{};
  if (::stat(target_.c_str(), &before) == 0) (void)!::fchmod(file, before.st_mode & 07777);
  bool written = write_all(file, pieces) && ::fsync(file) == 0;
  int error = errno;
  if (::close(file) != 0 && written) {
    written = false;
    error = errno;
  }
  if (!written) fail(error);
  if (::rename(name.c_str(), target_.c_str()) == 0) {
    cleanup.cancel();
    return true;
  }
  if (errno == EBUSY || errno == EXDEV) return false;
  fail(errno);
}

void OutputFile::write_in_place(std::span<const std::string_view> pieces) const {
  const int file = ::open(target_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, kMode);
  if (file < 0) fail(errno);
  bool written = write_all(file, pieces) && ::fsync(file) == 0;
  const int error = errno;
  written = ::close(file) == 0 && written;
  if (!written) fail(error);
}

// ---- What others write

void try_output(const std::string& flag, const std::string& path) {
  // Kept open: the reader of a pipe goes away once its last writer has.
  static std::vector<OutputFile>& tried = *new std::vector<OutputFile>;
  tried.emplace_back(flag, path);
}

void try_regular_output(const std::string& flag, const std::string& path) {
  struct stat facts{};
  if (!path.empty() && ::stat(path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode))
    throw Exit{kBadInput, flag + ": cannot write " + path + ": it is no file"};
  try_output(flag, path);
}

void try_output_folder(const std::string& flag, const std::string& path) {
  if (path.empty()) return;
  const auto refuse = [&](const std::string& at, const std::string& why) {
    throw Exit{kBadInput, flag + ": cannot write in " + at + ": " + why};
  };
  std::error_code error;
  fs::path at = fs::absolute(path, error).lexically_normal();
  struct stat facts{};
  while (::stat(at.c_str(), &facts) != 0) {
    if (errno != ENOENT) refuse(at, std::strerror(errno));
    if (::lstat(at.c_str(), &facts) == 0) refuse(at, "it is a link to nowhere");
    at = at.parent_path();
  }
  if (!S_ISDIR(facts.st_mode)) refuse(at, "it is no folder");
  if (::access(at.c_str(), W_OK | X_OK) != 0) refuse(at, std::strerror(errno));
}

namespace {

/// What tells a file from all others; nothing for what may be used twice, such as a device.
std::optional<std::string> identity_of(const std::string& path) {
  if (path.empty()) return std::nullopt;
  struct stat facts{};
  if (::stat(path.c_str(), &facts) == 0) {
    if (!S_ISREG(facts.st_mode) || standard_stream(facts) >= 0) return std::nullopt;
    return log::format("{}:{}", facts.st_dev, facts.st_ino);
  }
  std::error_code error;
  return (fs::weakly_canonical(folder_of(path), error) / fs::path(path).filename()).string();
}

}  // namespace

void refuse_same_files(std::initializer_list<FlagAndPath> outputs, std::initializer_list<FlagAndPath> inputs) {
  std::vector<FlagAndPath> known;  // flag and identity
  for (const auto& [flag, path] : inputs)
    if (const auto identity = identity_of(path)) known.emplace_back(flag, *identity);
  for (const auto& [flag, path] : outputs) {
    const auto identity = identity_of(path);
    if (!identity) continue;
    for (const auto& [other, taken] : known)
      if (taken == *identity) throw Exit{kBadInput, flag + " and " + other + " name the same file: " + path};
    known.emplace_back(flag, *identity);
  }
}

}  // namespace cohive::tools
