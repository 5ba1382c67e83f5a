// Look-ups of names on threads of their own.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::transport {

/// Runs `look_up()`, which may wait for a name server for half a minute, on a thread that neither other work nor the
/// end of the runtime or the program waits for. It must own all it touches; the flag it gets is set once no task wants
/// the result any more.
using LookUp = std::function<std::vector<Multiaddr>(const std::atomic<bool>& given_up)>;
Task<std::vector<Multiaddr>> in_background(Runtime& runtime, LookUp look_up);

}  // namespace cohive::transport
