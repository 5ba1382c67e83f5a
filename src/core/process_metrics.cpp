#include "core/detail/process_metrics.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "cohive/core/crypto.hpp"
#include "cohive/core/log_output.hpp"
#include "cohive/core/version.hpp"

namespace cohive {
namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

struct Memory {
  double total = 0, resident = 0;
};
/// In bytes: the first two numbers of statm are pages.
Memory memory() {
  std::ifstream file("/proc/self/statm");
  Memory memory;
  if (!(file >> memory.total >> memory.resident)) return {};
  const auto page = static_cast<double>(::sysconf(_SC_PAGESIZE));
  return {memory.total * page, memory.resident * page};
}

double entries_of(const char* folder) {
  std::error_code ignored;
  std::filesystem::directory_iterator entries(folder, ignored), end;
  return ignored ? 0 : static_cast<double>(std::distance(entries, end));
}

/// Unix time: the machine's boot time plus field 22 of stat, counted behind the program's name, which may hold
/// anything.
double start_time() {
  std::ifstream stat("/proc/self/stat");
  std::string line;
  std::getline(stat, line);
  std::size_t at = line.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
  std::ifstream machine("/proc/stat");
  double boot = 0;
  for (std::string word; machine >> word && word != "btime";) {
  }
  if (at == std::string::npos || !(machine >> boot)) return 0;
  return boot + std::stod(line.substr(at)) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

ProcessMetrics::ProcessMetrics(Metrics& metrics)
    : cpu_seconds_(metrics.counter("process_cpu_seconds_total", "Processor time of the process, user and system.")),
      log_lines_dropped_(metrics.counter("cohive_core_log_lines_dropped_total",
                                         "Lines of the log that were lost because their reader was too slow.")),
      resident_bytes_(metrics.gauge("process_resident_memory_bytes", "Memory of the process.")),
      virtual_bytes_(metrics.gauge("process_virtual_memory_bytes", "Address space of the process.")),
      open_descriptors_(metrics.gauge("process_open_fds", "Open file descriptors.")),
      max_descriptors_(metrics.gauge("process_max_fds", "File descriptors that the process may open.")),
      threads_(metrics.gauge("process_threads", "Threads of the process.")),
      start_time_(metrics.gauge("process_start_time_seconds", "Unix time at which the process began.")) {
  start_time_.set(start_time());
  metrics
      .gauge("cohive_build_info", "Always 1; the labels say which cohive this is.",
             {{"version", std::string(version())},
              {"revision", std::string(revision())},
              {"compiler", std::string(compiler())},
              {"aes", crypto::has_fast_aes() ? "yes" : "no"}})
      .set(1);
}

void ProcessMetrics::update() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  cpu_seconds_.increment(std::max(0.0, seconds(usage.ru_utime) + seconds(usage.ru_stime) - cpu_seconds_.value()));
  const auto lost = static_cast<double>(log::dropped_lines());
  log_lines_dropped_.increment(std::max(0.0, lost - log_lines_dropped_.value()));
  const Memory used = memory();
  resident_bytes_.set(used.resident);
  virtual_bytes_.set(used.total);
  open_descriptors_.set(entries_of("/proc/self/fd"));
  threads_.set(entries_of("/proc/self/task"));
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) max_descriptors_.set(static_cast<double>(files.rlim_cur));
}

}  // namespace cohive
