#include <cstdio>
#include <cstdlib>

#include "core/detail/assertion.hpp"

namespace cohive::detail {

void assertion_failed(const char* condition, std::source_location where) {
  std::fprintf(stderr, "cohive: %s:%u: %s: this does not hold: %s\n", where.file_name(), where.line(),
               where.function_name(), condition);
  std::abort();
}

}  // namespace cohive::detail
