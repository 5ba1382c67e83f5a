#include "train/data/corpus.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "common/program.hpp"
#include "common/signals.hpp"

namespace cohive::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostOpen = 64;  // files; more are closed and opened again
constexpr std::uint64_t kMostPiped = std::uint64_t{16} << 30;
constexpr std::size_t kPiece = std::size_t{1} << 20;  // of a pipe
constexpr std::size_t kMostTold = 10;                 // paths that are left out

[[noreturn]] void refuse_text(const fs::path& path, const std::string& why) {
  throw Exit{kBadInput, "--text: " + path.string() + ": " + why};
}

/// Reads until `out` is full or the file ends; -1: errno says why it cannot be read.
ssize_t read_at(int descriptor, std::uint64_t offset, std::span<std::uint8_t> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = ::pread(descriptor, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return static_cast<ssize_t>(done);
}

std::string advice_on(const Compression& compression, const std::string& then) {
  return log::format("it is compressed ({}); {}", compression.name, then);
}

// ---- A folder

/// Every regular file below a folder, each once.
class Walk {
 public:
  struct Found {
    fs::path path;
    std::uint64_t size;
  };

  explicit Walk(const fs::path& top) {
    std::vector<fs::path> folders{top};
    if (struct stat facts{}; ::stat(top.c_str(), &facts) == 0) is_new(facts);
    while (!folders.empty()) {
      const fs::path folder = std::move(folders.back());
      folders.pop_back();
      look_into(folder, folders);
    }
    if (left_out_ > kMostTold) log::warn("text", "and {} more paths are left out", left_out_ - kMostTold);
    std::ranges::sort(found_, {}, &Found::path);
  }
  const std::vector<Found>& found() const { return found_; }

 private:
  void look_into(const fs::path& folder, std::vector<fs::path>& folders) {
    std::error_code error;
    std::vector<fs::path> entries;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
      entries.push_back(at->path());
    if (error) leave_out(folder, error.message());
    std::ranges::sort(entries);
    for (const fs::path& path : entries) {
      struct stat facts{};
      if (::stat(path.c_str(), &facts) != 0) {
        leave_out(path, std::strerror(errno));
      } else if (S_ISDIR(facts.st_mode)) {
        if (is_new(facts)) folders.push_back(path);
      } else if (!S_ISREG(facts.st_mode)) {
        leave_out(path, "it is no file");
      } else if (facts.st_size > 0 && is_new(facts)) {
        found_.push_back({path, static_cast<std::uint64_t>(facts.st_size)});
      }
    }
  }
  bool is_new(const struct stat& facts) { return seen_.emplace(facts.st_dev, facts.st_ino).second; }
  void leave_out(const fs::path& path, const std::string& why) {
    if (++left_out_ <= kMostTold) log::warn("text", "{} is left out: {}", path.string(), why);
  }

  std::set<std::pair<dev_t, ino_t>> seen_;
  std::vector<Found> found_;
  std::size_t left_out_ = 0;
};

// ---- A pipe

/// A file without a name, which is gone when it is closed.
int open_unnamed(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  std::string name = folder + "/cohive-text-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

bool write_all(int file, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

/// How many bytes of a pipe have come: none after its end.
std::size_t read_pipe(int pipe, std::span<std::uint8_t> out, const fs::path& path) {
  for (;;) {
    if (stop_signal() != 0 || !wait_until_ready(pipe, POLLIN)) throw Stopped{};
    const ssize_t count = ::read(pipe, out.data(), out.size());
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EINTR && errno != EAGAIN) refuse_text(path, std::strerror(errno));
  }
}

}  // namespace

Compression compression_of(std::string_view head) {
  using namespace std::string_view_literals;
  static constexpr std::pair<std::string_view, Compression> kKnown[] = {
      {"\x1f\x8b"sv, {"gzip", "zcat"}},
      {"\x1f\x9d"sv, {"compress", "zcat"}},
      {"\xfd\x37zXZ\0"sv, {"xz", "xzcat"}},
      {"\x28\xb5\x2f\xfd"sv, {"zstd", "zstdcat"}},
      {"\x04\x22\x4d\x18"sv, {"lz4", "lz4cat"}},
      {"PK\x03\x04"sv, {"zip", "unzip -p"}},
      {"7z\xbc\xaf\x27\x1c"sv, {"7z", "7z x -so"}},
      {"LZIP\x01"sv, {"lzip", "lzip -dc"}},
  };
  for (const auto& [magic, compression] : kKnown)
    if (head.starts_with(magic)) return compression;
  static constexpr std::string_view kBlock = "\x31\x41\x59\x26\x53\x59"sv;  // behind "BZh" and the size of blocks
  if (head.starts_with("BZh") && head.substr(std::min<std::size_t>(4, head.size())).starts_with(kBlock))
    return {"bzip2", "bzcat"};
  return {};
}

Corpus::Corpus(const std::string& path, std::uint64_t least) {
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0) refuse_text(path, std::strerror(errno));
  if (S_ISDIR(facts.st_mode))
    add_folder(path);
  else if (S_ISREG(facts.st_mode))
    add_file(path, static_cast<std::uint64_t>(facts.st_size));
  else if (S_ISFIFO(facts.st_mode) || S_ISSOCK(facts.st_mode))
    add_pipe(path);
  else
    refuse_text(path, "it is a device, and no text");
  if (size() < least)
    throw Exit{kBadInput, "--text: " + path + " holds only " + std::to_string(size()) + " bytes of text; " +
                              std::to_string(least) + " are needed"};
}

Corpus::~Corpus() {
  for (const std::size_t index : open_) ::close(files_[index].descriptor);
}

/// Looks at the first bytes, too.
void Corpus::add_file(const fs::path& path, std::uint64_t bytes) {
  if (bytes == 0) return;
  files_.push_back({path, size() + bytes});
  std::uint8_t head[kCompressionHead];
  const ssize_t count = read_at(descriptor_of(files_.back()), 0, head);
  if (count < 0) refuse_text(path, std::strerror(errno));
  const Compression found = compression_of({reinterpret_cast<const char*>(head), static_cast<std::size_t>(count)});
  if (!found.name.empty())
    refuse_text(path, advice_on(found, log::format("{} {} | cohive-train --text /dev/stdin ... trains on what is in it",
                                                   found.tool, path.string())));
}

void Corpus::add_folder(const fs::path& path) {
  const Walk walk(path);
  for (const auto& file : walk.found()) add_file(file.path, file.size);
}

void Corpus::add_pipe(const fs::path& path) {
  // O_NONBLOCK: the open of a pipe would wait for its writer, also when a signal comes. A socket is not opened anew.
  int pipe = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (pipe < 0 && errno == ENXIO && path == "/dev/stdin") pipe = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  if (pipe < 0) refuse_text(path, std::strerror(errno));
  const auto closed = on_exit([pipe] { ::close(pipe); });
  std::error_code error;
  const std::string folder = fs::temp_directory_path(error).string();
  const auto no_room = [&](const std::string& why) {
    refuse_text(path, "it cannot be kept in " + folder + ": " + why + "; $TMPDIR names another folder");
  };
  if (error) refuse_text(path, "$TMPDIR is no folder");
  const int file = open_unnamed(folder);
  if (file < 0) no_room(std::strerror(errno));
  files_.push_back({path, 0, file});
  open_.push_back(0);
  log::info("text", "reading {} to its end", path.string());
  std::vector<std::uint8_t> piece(kPiece);
  for (std::uint64_t& size = files_.back().end;;) {
    const std::size_t count = read_pipe(pipe, piece, path);
    if (count == 0) break;
    if (!write_all(file, {piece.data(), count})) no_room(std::strerror(errno));
    size += count;
    if (size > kMostPiped) refuse_text(path, "a pipe may bring 16 GiB at most; put the text into a file");
  }
  const ssize_t head = read_at(file, 0, std::span(piece).first(kCompressionHead));
  const auto head_size = static_cast<std::size_t>(std::max<ssize_t>(head, 0));
  const Compression found = compression_of({reinterpret_cast<const char*>(piece.data()), head_size});
  if (!found.name.empty()) refuse_text(path, advice_on(found, log::format("let {} come before it", found.tool)));
}

// ---- Reading

int Corpus::descriptor_of(File& file) {
  if (file.descriptor >= 0) return file.descriptor;
  const int opened = ::open(file.path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (opened < 0) return -1;
  file.descriptor = opened;
  const auto index = static_cast<std::size_t>(&file - files_.data());
  if (open_.size() < kMostOpen) {
    open_.push_back(index);
  } else {
    ::close(std::exchange(files_[std::exchange(open_[oldest_], index)].descriptor, -1));
    oldest_ = (oldest_ + 1) % kMostOpen;
  }
  return opened;
}

void Corpus::read(std::uint64_t start, std::span<std::uint8_t> out) {
  auto file = std::ranges::upper_bound(files_, start, {}, &File::end);
  for (; !out.empty(); ++file) {
    const std::uint64_t begin = file == files_.begin() ? 0 : std::prev(file)->end;
    const auto wanted = out.first(static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), file->end - start)));
    const ssize_t count = read_at(descriptor_of(*file), start - begin, wanted);
    if (count < 0)
      throw Exit{kFailed, "--text: " + file->path.string() + " cannot be read any more: " + std::strerror(errno)};
    if (static_cast<std::size_t>(count) < wanted.size())
      throw Exit{kFailed, "--text: " + file->path.string() + " has become shorter since the start"};
    start += wanted.size();
    out = out.subspan(wanted.size());
  }
}

}  // namespace cohive::tools
