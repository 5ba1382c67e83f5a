#include "process_metrics.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

namespace cohive {
namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

/// Pages in use, the second number of statm.
double resident_pages() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  return file >> total >> resident ? resident : 0;
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
      resident_bytes_(metrics.gauge("process_resident_memory_bytes", "Memory of the process.")),
      open_descriptors_(metrics.gauge("process_open_fds", "Open file descriptors.")),
      start_time_(metrics.gauge("process_start_time_seconds", "Unix time at which the process began.")) {
  start_time_.set(start_time());
}

void ProcessMetrics::update() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  cpu_seconds_.increment(std::max(0.0, seconds(usage.ru_utime) + seconds(usage.ru_stime) - cpu_seconds_.value()));
  resident_bytes_.set(resident_pages() * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  std::error_code ignored;
  std::filesystem::directory_iterator open("/proc/self/fd", ignored), end;
  open_descriptors_.set(ignored ? 0 : static_cast<double>(std::distance(open, end)));
}

}  // namespace cohive
