/// \file
/// Names in multiaddresses: dns, dns4, dns6 and dnsaddr. Source: docs/wire/libp2p.md, section 1.2. Loop thread only.
#pragma once

#include <memory>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::transport {

/// Finds the numbers of a name.
class Resolver {
 public:
  virtual ~Resolver() = default;
  /// Returns the numeric addresses that a name leads to, with what follows the name; numeric ones come back unchanged.
  virtual Task<Result<std::vector<Multiaddr>>> resolve(Multiaddr address, Deadline deadline) = 0;
  /// The same for a name that a stranger announced: however many of these name servers leave without an answer, others
  /// are still looked up.
  virtual Task<Result<std::vector<Multiaddr>>> resolve_announced(Multiaddr address, Deadline deadline) {
    return resolve(std::move(address), deadline);
  }
};

/// Asks the system's name servers, off the loop: A records for dns and dns4, AAAA records for dns and dns6, TXT records
/// for dnsaddr. Under simulation no name resolves.
std::unique_ptr<Resolver> make_resolver(Runtime& runtime);

/// Returns whether an address begins with a name.
bool is_name(const Multiaddr& address);

}  // namespace cohive::transport
