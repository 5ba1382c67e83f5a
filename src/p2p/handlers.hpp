// The services of a host: which handler serves which protocol, and how many streams of it one peer may have open.
#pragma once

#include <map>
#include <string>

#include "cohive/core/signal.hpp"
#include "self.hpp"

namespace cohive::p2p {

class Handlers {
 public:
  explicit Handlers(Self& self) : self_(self) {}

  /// \param max_per_peer  streams that one peer may have open; 0 for services that count for themselves
  /// Throws std::invalid_argument when the protocol is taken.
  void add(std::string protocol, StreamHandler handler, std::size_t max_per_peer = 0);
  void remove(const std::string& protocol);
  bool serves(std::string_view protocol) const { return services_.contains(protocol); }
  std::vector<std::string> protocols() const;
  /// Whether this host serves the protocol, or it is one of those that hosts speak among themselves.
  bool knows(std::string_view name) const;
  Signal<>& changed() noexcept { return changed_; }

  /// Negotiates the protocol of an inbound stream and serves it.
  /// \param auxiliary  counts the streams of limited services for as long as they are open: identify, ping and the like
  ///                   are no reason to keep a connection. Must outlive the task.
  Task<void> serve(transport::StreamPtr stream, std::size_t& auxiliary);

 private:
  struct Service {
    StreamHandler handler;
    std::size_t max_per_peer;
  };
  class OpenStream;
  Self& self_;
  std::map<std::string, Service, std::less<>> services_;
  std::map<std::pair<PeerId, std::string>, std::size_t> open_;  ///< of limited services
  Signal<> changed_;
};

}  // namespace cohive::p2p
