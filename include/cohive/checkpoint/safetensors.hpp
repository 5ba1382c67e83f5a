/// \file
/// Files of named tensors in the safetensors format, which Python and other programs read.
/// Source: https://github.com/huggingface/safetensors (the format, and the bounds of its reference implementation).
///
///   8 bytes   N, the size of the header, little-endian; at most 100 MB
///   N bytes   {"__metadata__": {"key": "value", ...}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0,
///   24]}, ...} the rest  the tensors, row-major and little-endian, without gaps
///
/// A file that cohive writes holds its own hash in the metadata, under kHashKey: the SHA-256 of the whole file with the
/// digits of the hash replaced by zeros. Reading checks it where it is there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohive/codec/tensor.hpp"
#include "cohive/core/result.hpp"

namespace cohive::checkpoint {

inline constexpr std::uint64_t kMaxHeader = 100'000'000;  ///< that of the reference
/// Where the metadata have the hash of the tensors.
inline constexpr std::string_view kHashKey = "cohive.sha256";

/// Whatever belongs to the tensors and is text.
using Metadata = std::map<std::string, std::string, std::less<>>;

/// A tensor of a file.
struct NamedTensor {
  std::string name;      ///< UTF-8
  codec::Tensor tensor;  ///< with its values
};

/// The content of a file.
struct TensorFile {
  Metadata metadata;                 ///< of the whole file
  std::vector<NamedTensor> tensors;  ///< no two of one name; complex128 is not a type of the format
};

/// Where the data of a tensor are, from the end of the header on.
struct TensorEntry {
  std::string name;                            ///< of the tensor
  codec::DType dtype = codec::DType::float32;  ///< of the values
  codec::Shape shape;                          ///< empty: a scalar
  std::uint64_t begin = 0,                     ///< offset of the first byte
      end = 0;                                 ///< offset behind the last one
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

/// The header of a file.
struct Header {
  Metadata metadata;                 ///< of the whole file
  std::vector<TensorEntry> tensors;  ///< in the order of their data
};

/// Parses the JSON of a header for data of `data_size` bytes.
/// Errors: Errc::not_safetensors with the reason; Errc::damaged when the data end before the last tensor does.
Result<Header> parse_header(ByteView json, std::uint64_t data_size);
/// Returns the first bytes of a file, up to the data. Errors: cohive::Errc::invalid_argument for names that are not
/// UTF-8.
Result<std::string> encode_header(const Header& header);

/// Bounds of what is read.
struct ReadOptions {
  /// Bytes of tensors; more is refused. The size of a regular file bounds the work: whatever write_file() has written
  /// must be read again.
  std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max();
};
/// Reads a regular file; a symbolic link is none. Blocks: for a thread that may wait.
/// Errors: those of parse_header, Errc::damaged, cohive::Errc::io, cohive::Errc::limit_exceeded, also where a tensor
/// does not fit into memory.
Result<TensorFile> read_file(const std::filesystem::path& path, ReadOptions options = {});
/// Writes a file that is there as a whole or not at all, whenever the process or the machine stops: under a temporary
/// name beside it first, from the disk up. A file of that name is replaced. Blocks for as long as the disk needs.
/// Errors: cohive::Errc::io with the reason (such as a full disk), cohive::Errc::invalid_argument.
Result<> write_file(const std::filesystem::path& path, const TensorFile& content);

/// Writes such a file piece by piece, so that a task may give each piece to a thread that waits for the disk, and may
/// be dropped between two: what was written is removed then. Each call blocks as long as the disk needs for a piece.
class FileWriter {
 public:
  static constexpr std::size_t kPiece = std::size_t{16} << 20;  ///< bytes that one call of write_piece() writes at most

  /// Begins the file. Errors of this call and the other ones: those of write_file().
  static Result<FileWriter> create(std::filesystem::path path, std::shared_ptr<const TensorFile> content);
  /// Writes the next piece, on the disk and not into its cache alone. Returns whether more is left.
  Result<bool> write_piece();
  /// Ends the file, whose pieces are all written, and gives it its name.
  Result<> finish();

  FileWriter(FileWriter&&) noexcept;
  ~FileWriter();

 private:
  struct State;
  explicit FileWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cohive::checkpoint
