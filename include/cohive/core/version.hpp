/// \file
/// Which cohive this is.
#pragma once

#include <string_view>

/// The version of these headers, for the preprocessor: `#if COHIVE_VERSION_NUMBER >= 10200` asks for 1.2.0 or later.
#define COHIVE_VERSION_MAJOR 0
/// The second number of the version.
#define COHIVE_VERSION_MINOR 1
/// The third number of the version.
#define COHIVE_VERSION_PATCH 0
/// The version as one number that grows: major * 10000 + minor * 100 + patch.
#define COHIVE_VERSION_NUMBER (COHIVE_VERSION_MAJOR * 10000 + COHIVE_VERSION_MINOR * 100 + COHIVE_VERSION_PATCH)

namespace cohive {

/// The version of the library that is linked: "0.1.0".
std::string_view version() noexcept;
/// The commit that it was built from, as git describes it; "unknown" outside a clone.
std::string_view revision() noexcept;
/// "Clang 19.1.7".
std::string_view compiler() noexcept;

}  // namespace cohive
