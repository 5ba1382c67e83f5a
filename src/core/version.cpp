// The definitions of this file alone change with every commit: see CMakeLists.txt.
#include "cohive/core/version.hpp"

namespace cohive {

#define COHIVE_TEXT_OF(x) #x
#define COHIVE_TEXT(x) COHIVE_TEXT_OF(x)
#ifdef __clang__
#define COHIVE_COMPILER \
  "Clang " COHIVE_TEXT(__clang_major__) "." COHIVE_TEXT(__clang_minor__) "." COHIVE_TEXT(__clang_patchlevel__)
#else
#define COHIVE_COMPILER \
  "GCC " COHIVE_TEXT(__GNUC__) "." COHIVE_TEXT(__GNUC_MINOR__) "." COHIVE_TEXT(__GNUC_PATCHLEVEL__)
#endif

static_assert(std::string_view(COHIVE_VERSION) == COHIVE_TEXT(COHIVE_VERSION_MAJOR) "." COHIVE_TEXT(
                                                      COHIVE_VERSION_MINOR) "." COHIVE_TEXT(COHIVE_VERSION_PATCH),
              "version.hpp and CMakeLists.txt differ");

std::string_view version() noexcept {
  return COHIVE_VERSION;
}
std::string_view revision() noexcept {
  return COHIVE_REVISION;
}
std::string_view compiler() noexcept {
  return COHIVE_COMPILER;
}

}  // namespace cohive
