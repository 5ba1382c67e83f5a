// cohive: the programs that need no LibTorch in one, a third of their size. `cohive dht ...` is `cohive-dht ...`. The
// wheel of the Python package has it.
#include <cstdio>
#include <cstring>

int cohive_bootstrap_main(int argc, char** argv);
int cohive_dht_main(int argc, char** argv);
int cohive_monitor_main(int argc, char** argv);

int main(int argc, char** argv) {
  const struct {
    const char* name;
    int (*run)(int argc, char** argv);
  } programs[] = {{"bootstrap", cohive_bootstrap_main}, {"dht", cohive_dht_main}, {"monitor", cohive_monitor_main}};
  for (const auto& program : programs)
    if (argc > 1 && std::strcmp(argv[1], program.name) == 0) return program.run(argc - 1, argv + 1);
  std::fputs("usage: cohive bootstrap|dht|monitor [options]\n", stderr);
  return 2;
}
