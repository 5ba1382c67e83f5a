// What the module asks of the operating system.
#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include "cohive/core/errors.hpp"
#include "cohive/core/result.hpp"

namespace cohive::checkpoint {

/// Of a name that is being written: <name>.tmp-<hexadecimal digits>.
inline constexpr std::string_view kTemporary = ".tmp-";

/// \param what  was to be done, as "cannot be written"
inline Error file_error(const std::filesystem::path& path, int number, const std::string& what = "") {
  return system_error(cohive::Errc::io, number, path.string() + (what.empty() ? "" : ": " + what));
}

/// A file descriptor.
class File {
 public:
  explicit File(int descriptor = -1) : descriptor_(descriptor) {}
  ~File();
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  int get() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

/// A rename is safe on the disk only when its folder is.
Result<> sync_folder(const std::filesystem::path& folder);

}  // namespace cohive::checkpoint
