/// \file
/// Whether peers can connect to us.
#pragma once

#include <optional>
#include <string_view>

namespace cohive::p2p {

/// Whether peers outside can connect to this one.
enum class Reachability {
  unknown,   ///< no peer has tried yet
  public_,   ///< peers outside connect to us
  private_,  ///< peers outside cannot connect to us, or we do not listen
};

/// Returns "unknown", "public" or "private".
std::string_view to_text(Reachability reachability);
/// Parses what to_text() returns.
std::optional<Reachability> reachability_from_text(std::string_view text);

}  // namespace cohive::p2p
