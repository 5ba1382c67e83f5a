// OutputFile: what a program writes when its work is done, tried before the work begins.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace cohive::tools {

/// A file, or a pipe or a device as /dev/stdout, at which a flag points.
class OutputFile {
 public:
  /// No such output is wanted.
  OutputFile() = default;
  /// Sees that the path can be written, without a change of what it holds. An empty path is none. Throws Exit with code
  /// 2, or 1 where the disk has no room.
  OutputFile(std::string flag, std::string path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept { swap(other); }
  OutputFile& operator=(OutputFile&& other) noexcept {
    swap(other);
    return *this;
  }

  explicit operator bool() const noexcept { return how_ != How::not_at_all; }
  /// Writes the pieces one after the other, in place of what the file held, which stays where that fails. Throws Exit
  /// with code 1.
  void write(std::span<const std::string_view> pieces) const;
  void write(std::string_view text) const { write({&text, 1}); }

 private:
  enum class How { not_at_all, replaced, in_place, appended };
  void open_special(unsigned mode);
  void open_regular();
  void try_folder(bool exists);
  void write_in_place(std::span<const std::string_view> pieces) const;
  bool replace(std::span<const std::string_view> pieces) const;
  [[noreturn]] void refuse(const std::string& why) const;
  [[noreturn]] void refuse(int error) const;
  [[noreturn]] void fail(int error) const;
  void swap(OutputFile& other) noexcept;

  std::string flag_, path_;
  std::string target_;  // behind symbolic links
  How how_ = How::not_at_all;
  int descriptor_ = -1;  // of what is no file: a reader that saw it closed would go away
};

/// Tries a file that something else writes in the same way, with the same exit codes.
void try_output(const std::string& flag, const std::string& path);
/// The same, and refuses pipes and devices: for a file that is replaced by another one.
void try_regular_output(const std::string& flag, const std::string& path);
/// Sees that a folder can be written, or be made there. An empty path is none. Throws Exit with code 2.
void try_output_folder(const std::string& flag, const std::string& path);

/// A flag and the path that it was given, which may be empty.
using FlagAndPath = std::pair<std::string, std::string>;
/// Refuses an output that is another output or an input under whatever name. Throws Exit with code 2.
void refuse_same_files(std::initializer_list<FlagAndPath> outputs, std::initializer_list<FlagAndPath> inputs);

}  // namespace cohive::tools
