// Look-ups of names on threads of their own.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::transport {

/// Where a name comes from.
enum class NamedBy { user, stranger };

/// Runs `look_up()`, which may wait for a name server for half a minute, on a thread that neither other work nor the
/// end of the runtime or the program waits for. It must own all it touches; the flag it gets is set once no task wants
/// the result any more. Names of strangers, who may choose ones that no server answers for, take half of the threads at
/// most, and wait for those of our user.
using LookUp = std::function<std::vector<Multiaddr>(const std::atomic<bool>& given_up)>;
Task<std::vector<Multiaddr>> in_background(Runtime& runtime, LookUp look_up, NamedBy named_by = NamedBy::user);

}  // namespace cohive::transport
