// Files whose content is a secret: keys, secrets of swarms, tokens.
#pragma once

#include <filesystem>
#include <string>

#include "cohive/core/result.hpp"

namespace cohive {

/// An open file that only its owner and the system can read or change; closes itself.
class PrivateFile {
 public:
  /// Opens a regular file of this user, or of root, that other users of this machine have no right to. Anything else is
  /// refused with a sentence: a folder, a pipe or a device, a symbolic link, which somebody may turn elsewhere.
  /// \param name  what the file is, as "identity file"; the error says it with the path
  /// Errors: Errc::io.
  static Result<PrivateFile> open(const std::filesystem::path& path, const std::string& name);
  PrivateFile(PrivateFile&& other) noexcept;
  PrivateFile& operator=(PrivateFile&&) = delete;
  ~PrivateFile();

  /// Returns all of it. Errc::io when it is longer than `most` bytes.
  Result<std::string> read(std::size_t most) const;
  /// Locks the file for this process, as long as it is open. False when another process has done so. A file system
  /// without locks is locked as far as can be told.
  bool lock() const;

 private:
  PrivateFile(int file, std::string name) : file_(file), name_(std::move(name)) {}
  int file_;
  std::string name_;  ///< with the path
};

}  // namespace cohive
