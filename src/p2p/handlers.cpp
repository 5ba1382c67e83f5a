#include "handlers.hpp"

#include <stdexcept>

#include "cohive/transport/multistream.hpp"

namespace cohive::p2p {

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

Task<void> Handlers::serve(transport::StreamPtr stream, std::size_t& auxiliary) {
  auto protocol = co_await transport::answer_selection(
      *stream, [this](std::string_view name) { return serves(name); },
      self_.runtime.after(self_.options.negotiation_timeout));
  if (!protocol) co_return;
  const auto found = services_.find(*protocol);
  if (found == services_.end()) co_return;
  const Service service = found->second;  // it may be removed while it runs
  stream->set_protocol(*protocol);
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
