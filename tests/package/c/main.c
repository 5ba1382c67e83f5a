/* A program in C that knows only find_package(cohive COMPONENTS c): no compiler of C++ is asked for. */
#include <cohive/cohive.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  cohive_swarm* swarm = NULL;
  cohive_ticket* joined = NULL;
  if (cohive_abi_version() != COHIVE_ABI_VERSION) return 1;
  if (cohive_swarm_open("{\"bootstrp\": true}", NULL, 0, &swarm, &joined) != COHIVE_INVALID_ARGUMENT) return 2;
  if (!strstr(cohive_last_error(), "did you mean bootstrap?")) return 3;
  puts(cohive_version());
  return 0;
}
