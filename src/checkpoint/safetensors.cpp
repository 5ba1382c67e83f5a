#include "cohive/checkpoint/safetensors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "cohive/checkpoint/errors.hpp"
#include "cohive/core/sha256.hpp"
#include "cohive/core/try.hpp"
#include "files.hpp"

namespace cohive::checkpoint {

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<> sync_folder(const std::filesystem::path& folder) {
  const File directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems do not sync folders: their renames are as safe as they get.
  if (!directory || (::fsync(directory.get()) != 0 && errno != EINVAL)) return file_error(folder, errno);
  return ok();
}

namespace {

constexpr std::size_t kSizeBytes = 8;  // of the header's size
constexpr std::size_t kDigits = 2 * sizeof(crypto::Sha256Digest);
const std::string kNoHash(kDigits, '0');

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

Result<> write_all(int file, ByteView bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error(path, errno, "cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return ok();
}

/// Reads the next bytes of a file, and hashes them.
Result<> read_all(int file, MutableBytes out, crypto::Sha256& hash) {
  const ByteView all = out;
  while (!out.empty()) {
    const ssize_t read = ::read(file, out.data(), out.size());
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return system_error(cohive::Errc::io, errno, "cannot be read");
    if (read == 0) return Error(Errc::damaged, "it has been cut short");
    out = out.subspan(static_cast<std::size_t>(read));
  }
  hash.add(all);
  return ok();
}

/// Hashes the head of a file as it was before its hash was known.
void add_head(crypto::Sha256& hash, std::string head, std::string_view digits) {
  if (const auto at = digits.size() == kDigits ? head.find(digits) : head.npos; at != head.npos)
    head.replace(at, kDigits, kNoHash);
  hash.add(as_bytes(head));
}

struct OpenFile {
  File file;
  std::uint64_t size = 0;
};

Result<OpenFile> open_to_read(const std::filesystem::path& path) {
  // O_NONBLOCK: the open of a pipe would wait for its writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0 && errno == ELOOP)
    return Error(cohive::Errc::io, path.string() + ": is a symbolic link; name the file itself");
  if (file < 0) return file_error(path, errno);
  OpenFile opened{File(file)};
  struct stat facts;
  if (::fstat(file, &facts) != 0) return file_error(path, errno);
  if (!S_ISREG(facts.st_mode)) return Error(cohive::Errc::io, path.string() + ": is not a file");
  opened.size = static_cast<std::uint64_t>(facts.st_size);
  return opened;
}

std::uint64_t little_endian(ByteView bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | bytes[i];
  return value;
}

/// A sparse file costs nothing on the disk, and may be larger than any memory.
Result<Slice> memory_of(const TensorEntry& entry) {
  try {
    return Slice::uninitialised(entry.end - entry.begin);
  } catch (const std::bad_alloc&) {
    return Error(cohive::Errc::limit_exceeded,
                 "there is no memory for the " + std::to_string(entry.end - entry.begin) + " bytes of a tensor");
  }
}

Result<TensorFile> read_open(const OpenFile& from, ReadOptions options) {
  crypto::Sha256 ignored, hash;
  std::uint8_t size_bytes[kSizeBytes];
  if (from.size < kSizeBytes) return Error(Errc::damaged, "it has been cut short");
  TRY(read_all(from.file.get(), size_bytes, ignored));
  const std::uint64_t header_size = little_endian(size_bytes);
  if (header_size > kMaxHeader) return Error(Errc::not_safetensors, "its header is larger than 100 MB");
  if (header_size > from.size - kSizeBytes) return Error(Errc::damaged, "it has been cut short");
  std::string json(header_size, '\0');
  TRY(read_all(from.file.get(), {reinterpret_cast<std::uint8_t*>(json.data()), json.size()}, ignored));
  const std::uint64_t data_size = from.size - kSizeBytes - header_size;
  TRY(Header header, parse_header(as_bytes(json), data_size));
  if (data_size > options.max_bytes)
    return Error(cohive::Errc::limit_exceeded, "it holds more than " + std::to_string(options.max_bytes) + " bytes");

  const auto written = header.metadata.find(kHashKey);
  const std::string digits = written == header.metadata.end() ? "" : written->second;
  add_head(hash, std::string(reinterpret_cast<const char*>(size_bytes), kSizeBytes) + json, digits);
  TensorFile result{std::move(header.metadata), {}};
  for (auto& entry : header.tensors) {
    TRY(Slice data, memory_of(entry));
    TRY(read_all(from.file.get(), {data.mutable_data(), data.size()}, hash));
    result.tensors.push_back({std::move(entry.name), {entry.dtype, std::move(entry.shape), false, std::move(data)}});
  }
  if (!digits.empty() && to_hex(hash.finish()) != digits)
    return Error(Errc::damaged, "its bytes are not those that were written");
  return result;
}

/// The largest elements first, so that those of every tensor are aligned.
std::vector<const NamedTensor*> in_file_order(const TensorFile& content) {
  std::vector<const NamedTensor*> order;
  for (const auto& tensor : content.tensors) order.push_back(&tensor);
  std::ranges::sort(order, [](const NamedTensor* a, const NamedTensor* b) {
    const auto size_a = codec::size_of(a->tensor.dtype), size_b = codec::size_of(b->tensor.dtype);
    return size_a != size_b ? size_a > size_b : a < b;  // else as they were given
  });
  return order;
}

/// The header of a file, without its hash yet.
Header header_of(const TensorFile& content, const std::vector<const NamedTensor*>& tensors) {
  Header header{content.metadata, {}};
  header.metadata.insert_or_assign(std::string(kHashKey), kNoHash);
  std::uint64_t at = 0;
  for (const auto* one : tensors) {
    const std::uint64_t end = at + one->tensor.data.size();
    header.tensors.push_back({one->name, one->tensor.dtype, one->tensor.shape, at, end});
    at = end;
  }
  return header;
}

}  // namespace

Result<TensorFile> read_file(const std::filesystem::path& path, ReadOptions options) {
  TRY(const OpenFile opened, open_to_read(path));
  auto content = read_open(opened, options);
  if (!content) return content.error().with_context(path.string());
  return content;
}

Result<> write_file(const std::filesystem::path& path, const TensorFile& content) {
  const std::shared_ptr<const TensorFile> borrowed(std::shared_ptr<void>(), &content);
  TRY(auto writer, FileWriter::create(path, borrowed));
  for (bool more = true; more;) {
    TRY(more, writer.write_piece());
  }
  return writer.finish();
}

// ---- Piece by piece

/// The head is written twice, as it is known only at the end, and as long both times.
struct FileWriter::State {
  std::filesystem::path path;
  std::string temporary;
  std::shared_ptr<const TensorFile> content;
  std::vector<const NamedTensor*> tensors;
  Header header;
  File file;
  crypto::Sha256 hash;
  std::size_t tensor = 0, offset = 0;  // of what is written next
  bool named = false;

  ~State() {
    if (file && !named) ::unlink(temporary.c_str());
  }
  Error failed() const { return file_error(path, errno, "cannot be written"); }
};

FileWriter::FileWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
FileWriter::FileWriter(FileWriter&&) noexcept = default;
FileWriter::~FileWriter() = default;

Result<FileWriter> FileWriter::create(std::filesystem::path path, std::shared_ptr<const TensorFile> content) {
  auto state = std::make_unique<State>();
  state->path = std::move(path);
  state->content = std::move(content);
  state->tensors = in_file_order(*state->content);
  state->header = header_of(*state->content, state->tensors);
  TRY(const std::string blank, encode_header(state->header));
  // No file that cannot be read again.
  const auto& entries = state->header.tensors;
  TRY(parse_header(as_bytes(blank).subspan(kSizeBytes), entries.empty() ? 0 : entries.back().end));
  state->hash.add(as_bytes(blank));
  // Not the process id: in a container it is the same after every crash.
  std::uint8_t unique[4];
  crypto::random_bytes(unique);
  state->temporary = state->path.string() + std::string(kTemporary) + to_hex(unique);
  state->file = File(::open(state->temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!state->file) return state->failed();
  TRY(write_all(state->file.get(), as_bytes(blank), state->path));
  return FileWriter(std::move(state));
}

Result<bool> FileWriter::write_piece() {
  State& at = *state_;
  std::size_t room = kPiece;
  while (room > 0 && at.tensor < at.tensors.size()) {
    const ByteView left = ByteView(at.tensors[at.tensor]->tensor.data).subspan(at.offset);
    const ByteView piece = left.first(std::min(room, left.size()));
    at.hash.add(piece);
    TRY(write_all(at.file.get(), piece, at.path));
    room -= piece.size();
    at.offset += piece.size();
    if (piece.size() == left.size()) {
      ++at.tensor;
      at.offset = 0;
    }
  }
  if (room == 0 && ::fdatasync(at.file.get()) != 0) return at.failed();  // else the last call waits for all of it
  return at.tensor < at.tensors.size();
}

Result<> FileWriter::finish() {
  State& at = *state_;
  at.header.metadata[std::string(kHashKey)] = to_hex(at.hash.finish());
  TRY(const std::string head, encode_header(at.header));
  if (::lseek(at.file.get(), 0, SEEK_SET) != 0) return at.failed();
  TRY(write_all(at.file.get(), as_bytes(head), at.path));
  if (::fsync(at.file.get()) != 0 || ::rename(at.temporary.c_str(), at.path.c_str()) != 0) return at.failed();
  at.named = true;
  return sync_folder(folder_of(at.path));
}

}  // namespace cohive::checkpoint
