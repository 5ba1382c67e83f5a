// A line for each event, so that a file whose process was killed can be read, too:
//   [ metadata ,\n begin ,\n end ,\n ... \n]
// Spans overlap, so each is a pair of async events with an id of its own.
#include "cohive/core/trace.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive {
namespace {

constexpr std::size_t kMostWaiting = std::size_t{8} << 20;  // for a disk that is slow
constexpr Duration kTraceWriting = 500ms;

double microseconds(TimePoint time) {
  return to_seconds(time.time_since_epoch()) * 1e6;
}

}  // namespace

std::atomic<int> Trace::running_{0};
std::atomic<bool> Trace::failed_{false};

struct Trace::File {
  File(std::FILE* opened, std::string name) : path(std::move(name)), stream(opened) {}
  ~File() {
    write();  // what the loop has no more time for
    std::fclose(stream);
  }
  /// False, and nothing is added, where more than `most` wait already.
  bool append(std::string_view text, std::size_t most = std::numeric_limits<std::size_t>::max()) {
    const std::lock_guard lock(mutex);
    if (pending.size() > most) return false;
    pending += text;
    return true;
  }
  /// The first thread to come writes all that is pending, so that texts keep their order.
  void write() {
    const std::lock_guard writing_lock(writing);
    std::string text;
    {
      const std::lock_guard lock(mutex);
      text.swap(pending);
    }
    if (failure != 0) return;
    errno = 0;
    if (std::fwrite(text.data(), 1, text.size(), stream) < text.size() || std::fflush(stream) != 0)
      failure = errno ? errno : EIO;
  }
  std::mutex writing, mutex;
  const std::string path;
  std::string pending;
  std::FILE* stream;
  std::atomic<int> failure{0};  // of the first write that failed; nothing is written after it
};

Trace::Trace(Runtime& runtime) : runtime_(runtime) {}
Trace::~Trace() {
  stop();
}

Result<> Trace::start(const std::string& path, const std::string& process, std::size_t most_bytes) {
  if (on()) return Error(Errc::in_use, "a trace is being written");
  std::FILE* stream = std::fopen(path.c_str(), "we");
  if (!stream) return system_error(Errc::io, errno, "the trace " + path + " cannot be written");
  file_ = std::make_shared<File>(stream, path);
  most_bytes_ = most_bytes;
  bytes_ = spans_ = 0;
  offset_ = runtime_.wall_time() * 1e6 - microseconds(runtime_.now());
  const nlohmann::json name{{"name", "process_name"}, {"ph", "M"}, {"pid", ::getpid()}, {"args", {{"name", process}}}};
  file_->append("[\n" + name.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  running_.fetch_add(1, std::memory_order_relaxed);
  runtime_.background().spawn(keep_writing(*this, file_), "trace");
  return ok();
}

void Trace::stop() {
  if (!on()) return;
  const auto file = take_file();
  file->write();
  warn_of_failure(*file);
}

std::shared_ptr<Trace::File> Trace::take_file() {
  running_.fetch_sub(1, std::memory_order_relaxed);
  file_->append("\n]\n");
  return std::exchange(file_, nullptr);
}

void Trace::warn_of_failure(const File& file) {
  const int failure = file.failure;
  if (failure == 0) return;
  failed_ = true;
  log::warn("trace", "the trace {} cannot be written: {}", file.path, std::strerror(failure));
}

Task<void> Trace::keep_writing(Trace& self, std::weak_ptr<File> file) {
  for (;;) {
    co_await self.runtime_.sleep_for(kTraceWriting);
    const auto open = file.lock();
    if (!open || self.file_ != open) co_return;
    co_await self.runtime_.offload_io([open] { open->write(); });
    if (open->failure == 0) continue;
    warn_of_failure(*open);
    if (self.file_ == open) (void)self.take_file();
    co_return;
  }
}

Task<void> Trace::write_rest(Runtime& runtime, std::shared_ptr<File> file) {
  co_await runtime.offload_io([file] { file->write(); });
  warn_of_failure(*file);
}

void Trace::add(const char* category, const char* name, TimePoint begin, TimePoint end, std::string_view args) {
  if (!on()) return;
  const std::string common = log::format("\"cat\":\"{}\",\"name\":\"{}\",\"id\":{},\"pid\":{},\"tid\":1", category,
                                         name, ++spans_, static_cast<long>(::getpid()));
  const std::string text =
      log::format(",\n{{\"ph\":\"b\",{},\"ts\":{:.1f},\"args\":{{{}}}}},\n{{\"ph\":\"e\",{},\"ts\":{:.1f}}}", common,
                  microseconds(begin) + offset_, args, common, microseconds(end) + offset_);
  if (!file_->append(text, kMostWaiting)) return;
  bytes_ += text.size();
  if (bytes_ < most_bytes_) return;
  log::warn("trace", "the trace holds {} bytes and ends here", bytes_);
  runtime_.background().spawn(write_rest(runtime_, take_file()), "trace");
}

void TraceSpan::note(const char* key, std::string_view text) {
  if (!runtime_) return;
  args_ += (args_.empty() ? "\"" : ",\"") + std::string(key) +
           "\":" + nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void TraceSpan::note(const char* key, double number) {
  if (!runtime_) return;
  args_ += (args_.empty() ? "\"" : ",\"") + std::string(key) + "\":" + nlohmann::json(number).dump();
}

void TraceSpan::end() {
  if (!runtime_) return;
  Trace::of(*runtime_).add(category_, name_, begin_, runtime_->now(), args_);
  runtime_ = nullptr;
}

}  // namespace cohive
