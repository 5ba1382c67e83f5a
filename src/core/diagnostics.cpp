#include "cohive/core/diagnostics.hpp"

#include <boost/asio/signal_set.hpp>
#include <csignal>

#include "cohive/core/asio.hpp"
#include "cohive/core/log_output.hpp"

namespace cohive {

void write_diagnostics(const Runtime& runtime) {
  const auto lines = log::recent();
  const auto tasks = runtime.tasks();
  log::write_always("tasks", log::format("{} tasks, oldest first", tasks.size()));
  for (const TaskInfo& task : tasks)
    log::write_always("tasks", log::format("{} / {}: {} ({:.3f} s old)", task.group, task.name, task.waiting_for,
                                           to_seconds(task.age)));
  log::write_always("recent", log::format("the last {} lines of the log", lines.size()));
  for (const std::string& line : lines) log::write_always("recent", line);
}

Task<void> write_diagnostics_at_signal(Runtime& runtime) {
  boost::asio::signal_set signals(runtime.io_context(), SIGUSR1);
  for (;;) {
    (void)(co_await signals.async_wait(use_task)).value();
    write_diagnostics(runtime);
  }
}

}  // namespace cohive
