#include "cohive/checkpoint/folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "cohive/checkpoint/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/try.hpp"
#include "files.hpp"

namespace cohive::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "epoch-", kSuffix = ".safetensors";

std::string name_of(std::uint64_t epoch) {
  return log::format("{}{:08}{}", kPrefix, epoch, kSuffix);
}

/// The epoch of a name as name_of makes it.
std::optional<std::uint64_t> epoch_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  std::uint64_t epoch = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), epoch);
  if (error != std::errc() || end != digits.data() + digits.size() || name_of(epoch) != name) return std::nullopt;
  return epoch;
}

/// What a write that was interrupted left.
bool is_leftover(std::string_view name) {
  const auto at = name.rfind(kTemporary);
  return at != name.npos && epoch_of(name.substr(0, at));
}

/// Calls `take(name)` for every regular file.
template <class F>
Result<> for_each_file(const fs::path& folder, F take) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (fs::is_regular_file(at->symlink_status(ignored))) take(at->path().filename().string());
  }
  return error ? Result<>(file_error(folder, error.value())) : ok();
}

/// Sets a checkpoint aside that the run has gone back from: `resume` takes the newest one that has its own name.
void supersede(const fs::path& path) {
  const fs::path aside = path.string() + ".superseded";
  std::error_code error;
  fs::rename(path, aside, error);
  if (!error) log::info("checkpoint", "the run has gone back to an earlier epoch: {} is set aside", aside.string());
}

Result<> lock(int directory, const fs::path& path) {
  if (::flock(directory, LOCK_EX | LOCK_NB) == 0) return ok();
  if (errno == EWOULDBLOCK) return Error(Errc::in_use, path.string());
  log::debug("checkpoint", "no lock on {}: {}", path.string(), std::strerror(errno));
  return ok();
}

}  // namespace

Folder::Folder(Folder&& other) noexcept
    : path_(std::move(other.path_)), directory_(std::exchange(other.directory_, -1)) {}
Folder::~Folder() {
  if (directory_ >= 0) ::close(directory_);
}

Result<Folder> Folder::open(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return file_error(path, error.value(), "no folder for checkpoints");
  Folder folder(path, ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat facts;
  if (folder.directory_ < 0 || ::fstat(folder.directory_, &facts) != 0 || ::access(path.c_str(), W_OK | X_OK) != 0)
    return file_error(path, errno, "no folder for checkpoints");
  if ((facts.st_mode & S_IWOTH) != 0 && (facts.st_mode & S_ISVTX) == 0)
    log::warn("checkpoint", "every user of this machine may replace the checkpoints in {}", path.string());
  TRY(lock(folder.directory_, path));
  TRY(for_each_file(path, [&path](const std::string& name) {
    if (is_leftover(name)) ::unlink((path / name).c_str());
  }));
  return folder;
}

Result<std::vector<Folder::Entry>> Folder::list() const {
  std::vector<Entry> entries;
  TRY(for_each_file(path_, [&](const std::string& name) {
    if (const auto epoch = epoch_of(name)) entries.push_back({*epoch, path_ / name});
  }));
  std::ranges::sort(entries, std::greater(), &Entry::epoch);
  return entries;
}

Result<std::optional<Folder::Checkpoint>> Folder::newest_whole() {
  TRY(const auto entries, list());
  std::vector<fs::path> damaged;
  for (const auto& entry : entries) {
    auto content = read_file(entry.path);
    if (!content && content.error().code().category() != checkpoint_category()) return content.error();
    if (!content) {
      log::warn("checkpoint", "{}; trying an older one", content.error());
      damaged.push_back(entry.path);
      continue;
    }
    // Out of the way of those that are written from now on.
    std::error_code ignored;
    for (const auto& path : damaged) fs::rename(path, path.string() + ".damaged", ignored);
    return std::optional<Checkpoint>({entry, std::move(*content)});
  }
  if (!entries.empty()) return Error(Errc::damaged, path_.string() + ": no checkpoint in it is whole");
  return std::optional<Checkpoint>();
}

fs::path Folder::path_of(std::uint64_t epoch) const {
  return path_ / name_of(epoch);
}

Result<fs::path> Folder::write(std::uint64_t epoch, const TensorFile& content, std::size_t keep) {
  const fs::path path = path_of(epoch);
  TRY(write_file(path, content));
  TRY(keep_newest(epoch, keep));
  return path;
}

Result<> Folder::keep_newest(std::uint64_t epoch, std::size_t keep) const {
  TRY(const auto entries, list());
  std::size_t others = 0;
  for (const auto& [its_epoch, path] : entries) {
    if (its_epoch > epoch) {
      supersede(path);
    } else if (its_epoch < epoch && ++others >= std::max<std::size_t>(keep, 1)) {
      ::unlink(path.c_str());
    }
  }
  return ok();
}

}  // namespace cohive::checkpoint
