// cohive-bench-steps: the steps of `cohive-bench cuda` by themselves, on any device of LibTorch's. Prints JSON.
#include <iostream>

#include "bench/steps.hpp"
#include "common/numbers.hpp"
#include "common/program.hpp"
#include "common/signals.hpp"
#include "train/device.hpp"

int main(int argc, char** argv) {
  using namespace cohive;
  bench::StepSettings settings;
  std::string device = "cpu";
  int threads = 0;
  CLI::App app("Measures one optimizer step of a LibTorch model in several ways; prints JSON.", "cohive-bench-steps");
  app.add_option("--device", device, "cpu, cuda or cuda:N (default cpu)");
  app.add_option("--seconds", settings.seconds, "of all measurements (default 3)")->transform(tools::real(0.1, 3600));
  app.add_option("--megabytes", settings.megabytes, "of parameters (default 64)")->transform(tools::whole(1, 16384));
  app.add_option("--side", settings.side, "of the layers' matrices (default 1024)")->transform(tools::whole(8, 16384));
  app.add_option("--threads", threads, "of LibTorch (default: one for each core)")->transform(tools::whole(1, 1024));
  app.footer("Examples:\n  cohive-bench-steps --device cuda\n");
  return tools::run_program(argc, argv, app, [&] {
    tools::let_signals_end_program();
    if (threads > 0) torch::set_num_threads(threads);
    std::cout << bench::steps(tools::device_from_text(device), settings).dump() << std::endl;
    return 0;
  });
}
