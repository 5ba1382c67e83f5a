/// \file
/// Which cohive this is.
#pragma once

#include <string_view>

namespace cohive {

/// "0.1.0".
std::string_view version() noexcept;
/// The commit that it was built from, as git describes it; "unknown" outside a clone.
std::string_view revision() noexcept;
/// "Clang 19.1.7".
std::string_view compiler() noexcept;

}  // namespace cohive
