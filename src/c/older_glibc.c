/* Two names of glibc 2.32 and 2.36 that libstdc++'s archive asks for, so that the library loads where glibc is 2.34.
   Only in a library that carries all archives with it; nobody else sees them. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

/* "There may be other threads": always right. */
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

/* For std::random_device. Waits for entropy early after boot, as glibc's does. */
__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
  uint32_t number;
  if (getrandom(&number, sizeof number, 0) != sizeof number) abort();
  return number;
}
