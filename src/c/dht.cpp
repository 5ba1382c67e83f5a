// Records of the DHT, as msgpack on both sides.
#include <cmath>

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/msgpack.hpp"
#include "cohive/core/try.hpp"
#include "cohive/dht/errors.hpp"
#include "errors.hpp"
#include "options.hpp"
#include "swarm.hpp"
#include "validators.hpp"

namespace cohive::c {
namespace {

using msgpack::Array;
using msgpack::Value;

constexpr std::size_t kMostValues = 10'000'000;  // of one call: it comes from our own process

Array array_of(const std::uint8_t* data, std::size_t size, const char* name) {
  there(data, name);
  auto decoded = msgpack::decode({data, size}, kMostValues);
  if (!decoded) throw ErrorException(decoded.error().with_context(name));
  const auto* array = decoded->get_if<Array>();
  if (!array) refuse(std::string(name) + " must be a msgpack array");
  return *array;
}

dht::StoreItem item_of(const Value& value) {
  const auto* record = value.get_if<Array>();
  if (!record || record->items.size() < 3 || record->items.size() > 4)
    refuse("a record is [key, value, expiration] or [key, value, expiration, subkey]");
  const auto expiration = record->items[2].as_number();
  if (!expiration || !std::isfinite(*expiration)) refuse("an expiration is a number of Unix seconds");
  dht::StoreItem item{record->items[0], std::nullopt, record->items[1], *expiration};
  if (record->items.size() == 4) item.subkey = record->items[3];
  return item;
}

Array described(const Error& error) {
  return {{code_of(error), error.message()}};
}

Value described(const Result<dht::GetResult>& found) {
  if (!found) {
    if (found.error() == dht::Errc::not_found) return {};
    Array failure{{nullptr, nullptr, nullptr}};
    for (auto& part : described(found.error()).items) failure.items.push_back(std::move(part));
    return failure;
  }
  if (!found->is_dictionary()) return Array{{*found->value(), found->expiration}};
  Array entries;
  for (const auto& [subkey, entry] : found->entries())
    entries.items.emplace_back(Array{{subkey, entry.value, entry.expiration}});
  return Array{{nullptr, found->expiration, std::move(entries)}};
}

std::optional<Deadline> deadline_in(Runtime& runtime, std::optional<Duration> timeout) {
  if (!timeout) return std::nullopt;
  return *timeout == Duration::max() ? Deadline::never() : runtime.after(*timeout);
}

Task<Result<std::string>> store_all(Dht& dht, std::vector<dht::StoreItem> items, std::optional<Duration> timeout) {
  const auto stored = co_await dht.store_many(std::move(items), deadline_in(dht.runtime(), timeout));
  Array outcomes;
  for (const auto& one : stored) outcomes.items.emplace_back(one ? Value() : Value(described(one.error())));
  co_return msgpack::encode(std::move(outcomes));
}

Task<Result<std::string>> get_all(Dht& dht, std::vector<dht::Key> keys, bool latest, std::optional<Duration> timeout) {
  const auto found = co_await dht.get_many(std::move(keys), latest, deadline_in(dht.runtime(), timeout));
  Array outcomes;
  for (const auto& one : found) outcomes.items.push_back(described(one));
  co_return msgpack::encode(std::move(outcomes));
}

Task<Result<std::string>> ping(Dht& dht, PeerId peer, std::optional<Duration> timeout) {
  CO_TRY(const auto place, co_await dht.ping(peer, deadline_in(dht.runtime(), timeout)));
  co_return msgpack::encode(place ? Value(msgpack::Bin{place->binary()}) : Value());
}

std::optional<Duration> read_timeout(OptionReader& reader) {
  Duration timeout{};
  return reader.read("timeout", timeout) ? std::optional(timeout) : std::nullopt;
}

}  // namespace
}  // namespace cohive::c

using namespace cohive::c;

std::int32_t cohive_dht_store(cohive_swarm* swarm, const std::uint8_t* records, std::size_t size, const char* options,
                              cohive_ticket** stored) {
  return with_swarm(swarm, [&](SwarmState& state) {
    there(stored, "stored") = nullptr;
    OptionReader reader(options);
    const auto timeout = read_timeout(reader);
    reader.finish();
    std::vector<cohive::dht::StoreItem> items;
    for (const auto& record : array_of(records, size, "records").items) items.push_back(item_of(record));
    auto ticket = std::make_shared<Ticket>();
    state.begin(ticket, [items = std::move(items), timeout](cohive::train::Membership& membership) {
      return store_all(*membership.dht, items, timeout);
    });
    *stored = handle_of(std::move(ticket));
  });
}

std::int32_t cohive_dht_get(cohive_swarm* swarm, const std::uint8_t* keys, std::size_t size, const char* options,
                            cohive_ticket** found) {
  return with_swarm(swarm, [&](SwarmState& state) {
    there(found, "found") = nullptr;
    OptionReader reader(options);
    bool latest = false;
    reader.read("latest", latest);
    const auto timeout = read_timeout(reader);
    reader.finish();
    auto wanted = array_of(keys, size, "keys").items;
    auto ticket = std::make_shared<Ticket>();
    state.begin(ticket, [wanted = std::move(wanted), latest, timeout](cohive::train::Membership& membership) {
      return get_all(*membership.dht, wanted, latest, timeout);
    });
    *found = handle_of(std::move(ticket));
  });
}

std::int32_t cohive_dht_ping(cohive_swarm* swarm, const char* peer_id, const char* options, cohive_ticket** answered) {
  return with_swarm(swarm, [&](SwarmState& state) {
    there(answered, "answered") = nullptr;
    OptionReader reader(options);
    const auto timeout = read_timeout(reader);
    reader.finish();
    const auto peer = cohive::PeerId::from_text(&there(peer_id, "peer_id"));
    if (!peer) refuse(cohive::log::quoted(peer_id) + " is no id of a peer");
    auto ticket = std::make_shared<Ticket>();
    state.begin(ticket, [id = *peer, timeout](cohive::train::Membership& membership) {
      return ping(*membership.dht, id, timeout);
    });
    *answered = handle_of(std::move(ticket));
  });
}

std::int32_t cohive_dht_add_validator(cohive_swarm* swarm, cohive_validator* validator) {
  return with_swarm(swarm, [&](SwarmState& state) {
    const auto added = validator ? validator->validator : nullptr;
    state.on_loop(
        [&](cohive::train::Membership& membership) { membership.dht->add_validator(added ? added : membership.key); });
  });
}

std::int32_t cohive_dht_key_id(const std::uint8_t* key, std::size_t size, std::uint8_t id[20]) {
  return guarded([&] {
    there(id, "id");
    const auto decoded = cohive::msgpack::decode({&there(key, "key"), size}, kMostValues);
    if (!decoded) throw cohive::ErrorException(decoded.error().with_context("key"));
    const std::string bytes = cohive::dht::DhtId::of(*decoded).binary();
    std::copy(bytes.begin(), bytes.end(), id);
  });
}
