// Tells a peer whose process has ended from one behind a network that is lost for a while.
#pragma once

#include "cohive/p2p/host.hpp"

namespace cohive::averaging {

/// Dials a peer again whose connection broke. True when every known address refuses it at once: the peer is gone.
/// False when the peer is there, when nothing answers, and when it cannot be told.
Task<bool> is_refused(p2p::Host& host, PeerId peer);

}  // namespace cohive::averaging
