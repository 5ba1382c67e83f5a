// Corpus: the bytes of a text, which may be larger than the memory: they are read where they lie when they are needed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cohive::tools {

class Corpus {
 public:
  /// Finds a file, every regular file below a folder in the order of names, or the end of a pipe, which is kept in a
  /// file without a name. Below a folder symbolic links are followed, each file and folder once; what is left out there
  /// is told in the log. Throws Exit with code 2, also for compressed files and for fewer bytes than `least`; Stopped
  /// at a signal.
  Corpus(const std::string& path, std::uint64_t least);
  ~Corpus();
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  std::uint64_t size() const noexcept { return files_.empty() ? 0 : files_.back().end; }
  /// Copies the bytes from `start` on, all of which there are. Throws Exit with code 1 where a file cannot be read any
  /// more.
  void read(std::uint64_t start, std::span<std::uint8_t> out);

 private:
  struct File {
    std::filesystem::path path;
    std::uint64_t end = 0;  ///< of its bytes in the whole text
    int descriptor = -1;    ///< while it is one of those that are open
  };
  void add_file(const std::filesystem::path& path, std::uint64_t size);
  void add_pipe(const std::filesystem::path& path);
  void add_folder(const std::filesystem::path& path);
  int descriptor_of(File& file);

  std::vector<File> files_;
  std::vector<std::size_t> open_;  ///< indices of files; a new one takes the place of the oldest
  std::size_t oldest_ = 0;
};

/// A range of a corpus, which must outlive it.
struct Text {
  Corpus* corpus = nullptr;
  std::uint64_t begin = 0, size = 0;
};

/// How a file is compressed that begins so, and with what it is decompressed; empty names for one that is not.
struct Compression {
  std::string_view name, tool;
};
Compression compression_of(std::string_view head);
/// Bytes of a head that are enough for that.
inline constexpr std::size_t kCompressionHead = 16;

}  // namespace cohive::tools
