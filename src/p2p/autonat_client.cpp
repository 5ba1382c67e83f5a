#include "autonat_client.hpp"

#include <algorithm>

#include "cohive/core/log.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/errors.hpp"
#include "p2p/detail/network_block.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kFirstPause = 2s;  // after a server has come, for observed addresses to come in
constexpr Duration kSoon = 5s;        // between the first few servers
constexpr Duration kRetry = 90s;      // while nothing is known; also between two requests to one server, as p2pd
constexpr Duration kRefresh = 15min;  // of a conclusion, as p2pd
constexpr Duration kRefreshPrivate = 3min;
constexpr Duration kTimeout = 30s;

}  // namespace

// ---- Verdicts

void ReachabilityVerdicts::add(std::uint64_t network, bool reached, TimePoint now) {
  if (!verdicts_.contains(network) && verdicts_.size() >= kMost)
    verdicts_.erase(std::min_element(verdicts_.begin(), verdicts_.end(),
                                     [](const auto& a, const auto& b) { return a.second.at < b.second.at; }));
  verdicts_.insert_or_assign(network, Verdict{reached, now});
}

Reachability ReachabilityVerdicts::conclusion(TimePoint now) {
  std::erase_if(verdicts_, [now](const auto& one) { return one.second.at + kLife < now; });
  if (verdicts_.empty()) return Reachability::unknown;
  const auto reached = static_cast<std::size_t>(
      std::count_if(verdicts_.begin(), verdicts_.end(), [](const auto& one) { return one.second.reached; }));
  const std::size_t failed = verdicts_.size() - reached;
  return reached > 0 && 2 * reached >= failed ? Reachability::public_ : Reachability::private_;
}

// ---- The client

Task<Result<DialBackResponse>> request_dial_back(transport::Stream& stream, DialBackRequest request,
                                                 Deadline deadline) {
  CO_TRY(co_await transport::write_message(stream, as_bytes(encode(request)), deadline));
  transport::StreamReader reader(stream);
  CO_TRY(const auto bytes, co_await reader.read_message(kMaxAutoNatMessage, deadline));
  if (!bytes) co_return Error(cohive::Errc::end_of_stream, stream.peer(), "dial-back response");
  stream.close_write();
  co_return parse_dial_back_response(*bytes);
}

AutoNatClient::AutoNatClient(Self& self, ConnectionTable& table, Identify& identify, const Inbound& inbound,
                             ObservedAddresses& observed, const OwnAddresses& own)
    : self_(self),
      table_(table),
      inbound_(inbound),
      observed_(observed),
      own_(own),
      news_(self.runtime, "a peer that dials back"),
      tasks_(self.runtime, "autonat") {
  subscriptions_.push_back(identify.described().subscribe([this](const PeerId& peer) { consider(peer); }));
  subscriptions_.push_back(observed.moved().subscribe([this] { start_again(); }));
}

/// Nothing runs until there is a peer to ask.
void AutoNatClient::consider(const PeerId& peer) {
  const ConnectedPeer* known = table_.find(peer);
  if (!inbound_.listening() || !known || !is_server(peer, *known)) return;
  if (tasks_.empty()) {
    tasks_.spawn(run(*this), "ask to be dialled back");
  } else if (!verdicts_.is_settled()) {
    news_.notify_all();
  }
}

bool AutoNatClient::is_server(const PeerId& peer, const ConnectedPeer& known) const {
  if (!known.serves(kAutoNatProtocol)) return false;
  const auto entry = table_.best(peer);
  return entry && is_public_host(entry->connection->remote_address());
}

/// One that was not asked lately; by preference of a network that has not said anything yet.
std::optional<PeerId> AutoNatClient::choose_server() {
  const TimePoint now = self_.runtime.now();
  std::erase_if(asked_, [now](const auto& one) { return one.second + kRetry <= now; });
  std::vector<PeerId> fresh, of_new_networks;
  for (const auto& [id, peer] : table_.peers()) {
    if (asked_.contains(id) || !is_server(id, peer)) continue;
    fresh.push_back(id);
    const auto network = network_block(table_.best(id)->connection->remote_address());
    if (network && !verdicts_.has_of(*network)) of_new_networks.push_back(id);
  }
  if (!of_new_networks.empty()) fresh = std::move(of_new_networks);
  if (fresh.empty()) return std::nullopt;
  std::sort(fresh.begin(), fresh.end());  // the order of a hash table would not repeat
  return fresh[self_.runtime.random()() % fresh.size()];
}

Task<void> AutoNatClient::run(AutoNatClient& client) {
  Runtime& runtime = client.self_.runtime;
  co_await runtime.sleep_for(kFirstPause);
  for (;;) {
    if (const auto server = client.choose_server()) {
      client.asked_.insert_or_assign(*server, runtime.now());
      const auto request = client.make_request();
      const auto response = co_await ask(client, *server, request, runtime.after(kTimeout));
      client.take(*server, request.addresses, response);
    }
    (void)co_await client.news_.wait(runtime.after(client.pause()));
  }
}

Duration AutoNatClient::pause() {
  if (!verdicts_.is_settled() && choose_server()) return kSoon;
  if (conclusion_ == Reachability::unknown) return kRetry;
  return conclusion_ == Reachability::public_ ? kRefresh : kRefreshPrivate;
}

DialBackRequest AutoNatClient::make_request() const {
  DialBackRequest request{self_.id, observed_.candidates()};
  for (const auto& address : own_.announced())
    if (request.addresses.size() < kMaxDialBackAddresses && address.scope() == Multiaddr::Scope::public_)
      request.addresses.push_back(address);
  return request;
}

Task<Result<DialBackResponse>> AutoNatClient::ask(AutoNatClient& client, PeerId server, DialBackRequest request,
                                                  Deadline deadline) {
  const auto entry = client.table_.best(server);
  if (!entry) co_return Error(cohive::Errc::closed, server);
  CO_TRY(auto stream, co_await open_on(entry, kAutoNatProtocol, deadline));
  co_return co_await request_dial_back(*stream, std::move(request), deadline);
}

void AutoNatClient::take(const PeerId& server, const std::vector<Multiaddr>& asked,
                         const Result<DialBackResponse>& response) {
  const auto entry = table_.best(server);
  const auto network = entry ? network_block(entry->connection->remote_address()) : std::nullopt;
  if (!response || !network) {
    self_.metrics.probes_unanswered.increment();
    if (!response) log::debug("p2p", "{} does not dial back: {}", server, response.error());
    return;
  }
  switch (response->status) {
    case proto::AutoNat::OK:
      self_.metrics.probes_reached.increment();
      verdicts_.add(*network, true, self_.runtime.now());
      break;
    case proto::AutoNat::E_DIAL_ERROR:
      self_.metrics.probes_failed.increment();
      verdicts_.add(*network, false, self_.runtime.now());
      break;
    default:
      self_.metrics.probes_unanswered.increment();
      log::debug("p2p", "{} does not dial back: {}", server, log::quoted(response->text, 100));
      return;
  }
  const Reachability before = std::exchange(conclusion_, verdicts_.conclusion(self_.runtime.now()));
  observed_.set_unreachable(conclusion_ == Reachability::private_);
  // Any port of ours could be named as the one where we were reached.
  if (conclusion_ == Reachability::public_ && response->status == proto::AutoNat::OK && response->address &&
      std::ranges::find(asked, *response->address) != asked.end())
    observed_.add_reached(*response->address);
  if (conclusion_ != before) concluded_.emit(conclusion_);
}

void AutoNatClient::ask_again() {
  verdicts_.clear();
  asked_.clear();
  news_.notify_all();
}

/// What was said is about another place.
void AutoNatClient::start_again() {
  verdicts_.clear();
  asked_.clear();
  observed_.set_unreachable(false);
  if (std::exchange(conclusion_, Reachability::unknown) != Reachability::unknown) concluded_.emit(conclusion_);
  news_.notify_all();
}

}  // namespace cohive::p2p
