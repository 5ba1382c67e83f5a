// Files whose content is a secret.
#pragma once

#include <filesystem>

namespace cohive {

/// Whether every user of this machine may read, write or run the file; false when there is none.
inline bool is_open_to_all(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  return !error && std::filesystem::exists(status) &&
         (status.permissions() & std::filesystem::perms::others_all) != std::filesystem::perms::none;
}

}  // namespace cohive
