#include "swarm.hpp"

#include <pthread.h>

#include <csignal>
#include <thread>

#include "cohive/core/combine.hpp"
#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "errors.hpp"
#include "options.hpp"
#include "validators.hpp"

namespace cohive::c {
namespace {

/// A thread that takes none of the program's signals; those that it starts, the loop's among them, do not either.
/// Faults of its own stay.
void start_thread(std::function<void()> work) {
  sigset_t most, before;
  sigfillset(&most);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&most, fault);
  pthread_sigmask(SIG_SETMASK, &most, &before);
  try {
    std::thread(std::move(work)).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Task<void> until_set(std::shared_ptr<cohive::Event> event) {
  co_await event->wait();
}

/// What a ticket stands for: ends with the work, or when the caller gives it up.
Task<void> serve(Runtime& runtime, TicketPtr ticket, Task<Result<std::string>> work) {
  const EndGuard guard(ticket);
  const auto cancelled = std::make_shared<cohive::Event>(runtime, "cancelled");
  ticket->on_cancel([&runtime, weak = std::weak_ptr(cancelled)] {
    runtime.post([weak] {
      if (const auto event = weak.lock()) event->set();
    });
  });
  try {
    auto outcome = co_await race(runtime, std::move(work), until_set(cancelled));
    ticket->end(outcome.index() == 0 ? std::get<0>(std::move(outcome))
                                     : Result<std::string>(Error(cohive::Errc::cancelled, "given up by its caller")));
  } catch (...) {
    ticket->end_by_exception();
  }
}

}  // namespace

SwarmState::~SwarmState() {
  run_close();
}

void SwarmState::open(SwarmOptions options, TicketPtr joined) {
  try {
    start_thread([self = shared_from_this(), options = std::move(options), joined]() mutable {
      self->run_open(std::move(options), joined);
    });
  } catch (...) {  // no thread opens it, for which the destructor would wait
    const std::lock_guard lock(mutex_);
    stage_ = Stage::closed;
    throw;
  }
}

void SwarmState::run_open(SwarmOptions options, TicketPtr joined) {
  const EndGuard guard(joined);
  options.give_up = [this, joined] {
    const std::lock_guard lock(mutex_);
    return unwanted_ || joined->cancelled();
  };
  std::unique_ptr<Swarm> swarm;
  std::string status;
  Result<std::string> outcome = Error(cohive::Errc::internal);
  try {
    swarm = std::make_unique<Swarm>(std::move(options));
    auto& membership = swarm->membership();
    membership.on_loop([&] {
      tasks_ = std::make_unique<TaskGroup>(membership.runtime(), "calls of C");
      status = status_of(membership);
    });
    outcome = std::move(status);
  } catch (const ErrorException& exception) {
    outcome = joined->cancelled() ? Error(cohive::Errc::cancelled, "given up by its caller") : exception.error();
  } catch (const std::exception& exception) {
    outcome = Error(cohive::Errc::internal, exception.what());
  }
  {
    const std::lock_guard lock(mutex_);
    stage_ = swarm ? Stage::open : Stage::closed;
    swarm_ = std::move(swarm);
    changed_.notify_all();
  }
  crypto::release_thread();
  joined->end(std::move(outcome));
}

void SwarmState::close(TicketPtr closed) {
  {
    const std::lock_guard lock(mutex_);
    unwanted_ = true;
  }
  start_thread([self = shared_from_this(), closed] {
    const EndGuard guard(closed);
    self->run_close();
    crypto::release_thread();
    closed->end(std::string("\xc0"));  // nil
  });
}

void SwarmState::run_close() {
  std::unique_lock lock(mutex_);
  // No thread opens it any more when the destructor comes, which that thread has kept away.
  changed_.wait(lock, [this] { return stage_ != Stage::opening && !leaving_; });
  stage_ = Stage::closed;
  if (!swarm_) return;
  leaving_ = true;
  auto swarm = std::move(swarm_);
  const auto users = std::exchange(users_, {});
  lock.unlock();
  leave(std::move(swarm), users);
  lock.lock();
  leaving_ = false;
  changed_.notify_all();
}

void SwarmState::leave(std::unique_ptr<Swarm> swarm, const std::map<std::uint64_t, std::function<void()>>& users) {
  for (const auto& [id, end] : users) {
    try {
      end();
    } catch (const std::exception& error) {  // which nobody else hears of
      log::error("train", "the end of what used the swarm failed: {}", log::quoted(error.what()));
    }
  }
  swarm->membership().on_loop([this] {
    tasks_.reset();
    objects_.clear();
  });
}

void SwarmState::begin(TicketPtr ticket, std::function<Task<Result<std::string>>(train::Membership&)> make) {
  const std::lock_guard lock(mutex_);
  if (stage_ != Stage::open)
    throw ErrorException(Error(cohive::Errc::closed,
                               stage_ == Stage::opening ? "the swarm has not been joined yet" : "the swarm was left"));
  auto& membership = swarm_->membership();
  membership.runtime().post([this, &membership, ticket = std::move(ticket), make = std::move(make)] {
    // What was posted before the end runs before it.
    tasks_->spawn(serve(membership.runtime(), ticket, make(membership)), "call of C");
  });
}

Swarm& SwarmState::use(std::uint64_t id, std::function<void()> end) {
  const std::lock_guard lock(mutex_);
  if (stage_ != Stage::open) throw ErrorException(Error(cohive::Errc::closed, "the swarm is not joined, or was left"));
  users_[id] = std::move(end);
  return *swarm_;
}

void SwarmState::used(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  users_.erase(id);
}

void SwarmState::on_loop(const std::function<void(train::Membership&)>& work) {
  const std::lock_guard lock(mutex_);
  if (stage_ != Stage::open) throw ErrorException(Error(cohive::Errc::closed, "the swarm is not joined, or was left"));
  auto& membership = swarm_->membership();
  membership.on_loop([&] { work(membership); });
}

std::string status_of(train::Membership& membership) {
  using namespace msgpack;
  Array addresses;
  for (const auto& address : membership.host->visible_addresses()) addresses.items.emplace_back(address.text());
  const auto url = [&](auto get) {
    return membership.metrics_server ? get(*membership.metrics_server) : std::string();
  };
  return encode(Map{{{"peer_id", membership.host->id().text()},
                     {"visible_maddrs", std::move(addresses)},
                     {"client_mode", membership.options.client_mode},
                     {"nodes", std::uint64_t{membership.dht->table_size()}},
                     {"records", std::uint64_t{membership.dht->storage_size()}},
                     {"metrics_url", url([](auto& server) { return server.url(); })},
                     {"page_url", url([](auto& server) { return server.page_url(); })}}});
}

std::int32_t with_swarm(cohive_swarm* swarm, const std::function<void(SwarmState&)>& body) noexcept {
  return with_handle(swarm, "swarm", [&] { body(*swarm->state); });
}

namespace {

void read_dht_options(OptionReader& reader, DhtOptions& dht) {
  reader.read("bucket_size", dht.bucket_size, 1);
  reader.read("num_replicas", dht.num_replicas, 1);
  reader.read("beam_size", dht.beam_size, 1);
  reader.read("depth_modulo", dht.depth_modulo, 1);
  reader.read("wait_timeout", dht.wait_timeout);
  reader.read("refresh_timeout", dht.refresh_timeout);
  reader.read("cache_locally", dht.cache_locally);
  reader.read("cache_nearest", dht.cache_nearest);
  reader.read("cache_size", dht.cache_size);
  reader.read("cache_refresh_before_expiry", dht.cache_refresh_before_expiry);
  reader.read("cache_on_store", dht.cache_on_store);
  reader.read("reuse_get_requests", dht.reuse_get_requests);
  reader.read("num_workers", dht.num_workers, 1);
  reader.read("chunk_size", dht.chunk_size, 1);
  reader.read("parallel_rpc", dht.parallel_rpc, 1);
  reader.read("blacklist_time", dht.blacklist_time);
  reader.read("backoff_rate", dht.backoff_rate, 1);
  reader.read("max_records", dht.max_records, 1);
  reader.read("max_value_bytes", dht.max_value_bytes, 1);
  reader.read("search_timeout", dht.search_timeout);
  reader.read("operation_timeout", dht.operation_timeout);
}

SwarmOptions read_swarm_options(const char* text) {
  OptionReader reader(text);
  SwarmOptions options;
  bool bootstrap = false;
  reader.read("initial_peers", options.initial_peers);
  reader.read("peers_from_environment", options.peers_from_environment);
  reader.read("bootstrap", bootstrap);
  reader.read("host_maddrs", options.host_maddrs);
  reader.read("announce_maddrs", options.announce_maddrs);
  reader.read("identity_path", options.identity_path);
  reader.read("client_mode", options.client_mode);
  reader.read("use_relay", options.use_relay);
  reader.read("relay_service", options.relay_service);
  reader.read("trusted_relays", options.trusted_relays);
  reader.read("force_reachability", options.force_reachability);
  reader.read("nat_port_map", options.nat_port_map);
  reader.read("metrics_address", options.metrics_address);
  reader.read("metrics_token_file", options.metrics_token_file);
  reader.read("trace_file", options.trace_file);
  reader.read("max_upload", options.max_upload);
  reader.read("max_download", options.max_download);
  reader.read("congestion_control", options.congestion_control);
  reader.read("connections_per_peer", options.connections_per_peer, 1);
  reader.read("bootstrap_timeout", options.bootstrap_timeout);
  reader.read("wait_for_swarm", options.wait_for_swarm);
  reader.read("ensure_bootstrap_success", options.ensure_bootstrap_success);
  reader.read("check_owners", options.check_owners);
  reader.read("secret_file", options.secret_file);
  reader.read("members_file", options.members_file);
  read_dht_options(reader, options.dht);
  reader.finish();
  if (bootstrap) options.peers_from_environment = options.ensure_bootstrap_success = false;
  // What cannot be an address is refused before any work.
  for (const auto* list :
       {&options.initial_peers, &options.trusted_relays, &options.host_maddrs, &options.announce_maddrs})
    for (const auto& address : *list) {
      const auto parsed = Multiaddr::from_text(address);
      if (!parsed) throw ErrorException(parsed.error());
      const bool of_a_peer = list == &options.initial_peers || list == &options.trusted_relays;
      if (of_a_peer && !parsed->peer()) refuse(address + " does not end with /p2p/PEER_ID");
    }
  return options;
}

}  // namespace
}  // namespace cohive::c

using namespace cohive::c;

std::int32_t cohive_swarm_open(const char* options, cohive_validator* const* validators, std::size_t count,
                               cohive_swarm** swarm, cohive_ticket** joined) {
  return guarded([&] {
    there(swarm, "swarm") = nullptr;
    there(joined, "joined") = nullptr;
    auto wanted = read_swarm_options(options);
    for (std::size_t i = 0; i < count; ++i) {
      const auto& validator = there((&there(validators, "validators"))[i], "a validator");
      if (validator.rsa && !wanted.key) wanted.key = validator.rsa;
      if (!validator.rsa) wanted.validators.push_back(validator.validator);
    }
    follow_forks();
    auto ticket = std::make_shared<Ticket>();
    std::unique_ptr<cohive_swarm> handle(new cohive_swarm{std::make_shared<SwarmState>(), {}});
    std::unique_ptr<cohive_ticket> ticket_handle(handle_of(ticket));
    handle->state->open(std::move(wanted), ticket);
    *swarm = handle.release();
    *joined = ticket_handle.release();
  });
}

std::int32_t cohive_swarm_status(cohive_swarm* swarm, cohive_ticket** status) {
  return with_swarm(swarm, [&](SwarmState& state) {
    auto ticket = std::make_shared<Ticket>();
    there(status, "status") = nullptr;
    state.begin(ticket, [](cohive::train::Membership& membership) -> cohive::Task<cohive::Result<std::string>> {
      return [](cohive::train::Membership& of) -> cohive::Task<cohive::Result<std::string>> {
        co_return status_of(of);
      }(membership);
    });
    *status = handle_of(std::move(ticket));
  });
}

std::int32_t cohive_swarm_close(cohive_swarm* swarm, cohive_ticket** closed) {
  return with_swarm(swarm, [&](SwarmState& state) {
    there(closed, "closed") = nullptr;
    auto ticket = std::make_shared<Ticket>();
    state.close(ticket);
    *closed = handle_of(std::move(ticket));
  });
}

void cohive_swarm_free(cohive_swarm* swarm) {
  if (!swarm || swarm->origin.elsewhere()) return;
  (void)guarded([&] { swarm->state->close(std::make_shared<Ticket>()); });
  delete swarm;
}
