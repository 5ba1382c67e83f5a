/// \file
/// Folder: the checkpoints of one trainer, epoch-00000042.safetensors and so on, of which it keeps the last few.
#pragma once

#include <optional>

#include "cohive/checkpoint/safetensors.hpp"

namespace cohive::checkpoint {

/// All calls block as long as the disk needs. One thread at a time; the folder belongs to one process at a time.
class Folder {
 public:
  /// Makes the folder where it is missing, and removes what interrupted writes left in it.
  /// Errors: Errc::in_use when another process holds it, cohive::Errc::io with the reason.
  static Result<Folder> open(const std::filesystem::path& path);
  Folder(Folder&&) noexcept;
  ~Folder();

  /// A checkpoint in the folder, by its name.
  struct Entry {
    std::uint64_t epoch = 0;     ///< by its name
    std::filesystem::path path;  ///< of the file
  };
  /// Returns the checkpoints that are there, newest first. Nothing has looked into them.
  Result<std::vector<Entry>> list() const;

  /// A checkpoint that was read.
  struct Checkpoint {
    Entry entry;         ///< where it was
    TensorFile content;  ///< all of the file
  };
  /// Reads the newest checkpoint that is whole; nullopt in an empty folder. Newer ones that are damaged get another
  /// name, NAME.damaged, and a line in the log. Errors: Errc::damaged when there are some and none is whole; those of
  /// the operating system.
  Result<std::optional<Checkpoint>> newest_whole();

  /// Writes a checkpoint; then, and only then, removes all earlier ones but the newest `keep` - 1. Those of later
  /// epochs, which the run has gone back from, get another name, NAME.superseded.
  Result<std::filesystem::path> write(std::uint64_t epoch, const TensorFile& content, std::size_t keep);

  /// Returns where the checkpoint of an epoch is, or would be.
  std::filesystem::path path_of(std::uint64_t epoch) const;
  /// Does what follows when the checkpoint of `epoch` is on the disk: the second half of write().
  Result<> keep_newest(std::uint64_t epoch, std::size_t keep) const;

  /// Returns the path of the folder.
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  Folder(std::filesystem::path path, int directory) : path_(std::move(path)), directory_(directory) {}
  std::filesystem::path path_;
  int directory_ = -1;
};

}  // namespace cohive::checkpoint
