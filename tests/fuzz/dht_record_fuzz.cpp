// What DHT records are made of: subkeys, dictionaries, signatures, schemas. Input: size of the subkey, the subkey, then
// the value.
#include "dht/find_reply.hpp"
#include "dht/storage.hpp"
#include "dht_validators.hpp"
#include "fuzz.hpp"

namespace cohive::fuzz {
namespace {

using namespace dht;

void examine_dictionary(ByteView bytes) {
  const StorageLimits limits{.max_subkeys = 100, .max_value_bytes = 1000, .max_dictionary_bytes = 10'000};
  auto dictionary = Dictionary::decode(bytes, limits);
  if (!dictionary) return;
  expect(dictionary->entries().size() <= limits.max_subkeys, "a dictionary keeps to its bounds");
  const auto again = Dictionary::decode(as_bytes(dictionary->encoded()), limits);
  expect(again && again->encoded() == dictionary->encoded(), "a dictionary survives its encoding");
  expect(again->bytes() == dictionary->bytes(), "a dictionary counts its bytes right");
  Storage storage(limits);
  if (!dictionary->entries().empty()) {
    std::mt19937_64 random(1);
    const auto drawn = Dictionary::decode(as_bytes(dictionary->encoded_sample(3, false, random)), limits);
    const auto count = std::min<std::size_t>(3, dictionary->entries().size());
    expect(drawn && drawn->entries().size() == count, "a sample has as many entries as were asked for");
  }
  storage.store_dictionary(DhtId::of("key"), *dictionary, 0);
  if (const auto* stored = storage.get(DhtId::of("key"), 0)) expect(stored->is_dictionary(), "it is stored as one");
  while (!dictionary->entries().empty()) dictionary->drop_expired(std::numeric_limits<double>::infinity());
  expect(dictionary->bytes() == 0, "an empty dictionary has no bytes");
}

}  // namespace

COHIVE_FUZZ_TARGET(dht_record)(ByteView bytes) {
  Input input(bytes);
  const std::size_t high = input.byte();
  const std::string subkey = to_string(input.take(high << 8 | input.byte()));
  const std::string value = to_string(input.rest());
  if (const auto parsed = Subkey::from_tag(subkey)) {
    expect(parsed->encoded == subkey, "a subkey is the bytes that came");
    expect(Subkey::from_tag(parsed->encoded)->identity == parsed->identity, "a subkey has one identity");
  }
  for (const std::string& tag : {subkey, std::string(kRegularTag)}) {
    const Record record{DhtId::of("run_progress").binary(), tag, value, 1.7e9};
    (void)rsa_validator()->validate(record);
    (void)rsa_validator()->strip_value(record);
    (void)schema_validator()->validate(record);
  }
  examine_dictionary(as_bytes(value));
  if (const auto reply = read_find_reply(as_bytes(value), 16, 100))
    expect(reply->results.size() <= 16, "a find reply keeps to its bounds");
}

}  // namespace cohive::fuzz
