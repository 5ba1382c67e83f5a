#include "handlers.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "cohive/transport/multistream.hpp"

namespace cohive::p2p {
namespace {

// What parts of a host ask peers for only if they serve it; docs/wire/libp2p.md, sections 5 to 9.
constexpr std::array<std::string_view, 7> kOfHosts = {"/ipfs/id/push/1.0.0",
                                                      "/ipfs/ping/1.0.0",
                                                      "/ipfs/kad/1.0.0",
                                                      "/libp2p/autonat/1.0.0",
                                                      "/libp2p/circuit/relay/0.2.0/hop",
                                                      "/libp2p/circuit/relay/0.2.0/stop",
                                                      "/libp2p/dcutr"};

}  // namespace

/// A stream of a limited service, counted while it lives.
class Handlers::OpenStream {
 public:
  OpenStream(Handlers& owner, PeerId peer, std::string protocol, std::size_t& auxiliary)
      : open_(owner.open_), at_(open_.try_emplace({peer, std::move(protocol)}).first), auxiliary_(auxiliary) {
    ++at_->second;
    ++auxiliary_;
  }
  ~OpenStream() {
    --auxiliary_;
    if (--at_->second == 0) open_.erase(at_);
  }
  OpenStream(const OpenStream&) = delete;
  OpenStream& operator=(const OpenStream&) = delete;
  std::size_t of_peer() const { return at_->second; }

 private:
  decltype(Handlers::open_)& open_;
  decltype(Handlers::open_)::iterator at_;
  std::size_t& auxiliary_;
};

void Handlers::add(std::string protocol, StreamHandler handler, std::size_t max_per_peer) {
  const auto [at, inserted] = services_.emplace(std::move(protocol), Service{std::move(handler), max_per_peer});
  if (!inserted) throw std::invalid_argument("handler for protocol " + at->first + " already set");
  changed_.emit();
}

void Handlers::remove(const std::string& protocol) {
  if (services_.erase(protocol) > 0) changed_.emit();
}

std::vector<std::string> Handlers::protocols() const {
  std::vector<std::string> result;
  for (const auto& [protocol, service] : services_) result.push_back(protocol);
  return result;
}

bool Handlers::knows(std::string_view name) const {
  return std::ranges::find(kOfHosts, name) != kOfHosts.end() || serves(name);
}

Task<void> Handlers::serve(transport::StreamPtr stream, std::size_t& auxiliary) {
  auto protocol = co_await transport::answer_selection(
      *stream, [this](std::string_view name) { return serves(name); },
      self_.runtime.after(self_.options.negotiation_timeout));
  if (!protocol) co_return;
  const auto found = services_.find(*protocol);
  if (found == services_.end()) co_return;
  const Service service = found->second;  // it may be removed while it runs
  stream->set_protocol(*protocol);
  stream->set_begun(false);  // services that wait for a request set it again
  std::optional<OpenStream> counted;
  if (service.max_per_peer > 0) {
    counted.emplace(*this, stream->peer(), *protocol, auxiliary);
    if (counted->of_peer() > service.max_per_peer) {
      self_.metrics.streams_refused.increment();
      co_return;  // dropping the stream resets it
    }
  }
  co_await service.handler(std::move(stream));
}

}  // namespace cohive::p2p
