#include "dht/storage.hpp"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <cstring>
#include <set>

namespace cohive::dht {
namespace {

const DhtId kKey = DhtId::of("key");
Subkey sub(const msgpack::Value& value) {
  return Subkey::from_value(value).value();
}
const Dictionary& dictionary_at(Storage& storage, double now) {
  return *storage.get(kKey, now)->dictionary();
}

TEST(DhtId, HashesAsHivemindDoes) {
  using namespace msgpack;
  EXPECT_EQ(DhtId::of("key").hex(), "88c6f489594d5d9a9d57d93567bfb6ee377abd24");
  EXPECT_EQ(DhtId::of("").hex(), "c7da1ff95a25c353f1319604703e8bfd287ee1a1");
  EXPECT_EQ(DhtId::of(Bin{"raw-bytes"}).hex(), "1e4f35295d35c216378ed71a38dbe04acc586443");
  EXPECT_EQ(DhtId::of(42).hex(), "df58248c414f342c81e056b40bee12d17a08bf61");
  EXPECT_EQ(DhtId::of(Tuple{{"a", 1}}).hex(), "edd01de4b5be93353047fae489cc36b2e8f20fb1");
  EXPECT_EQ(DhtId::of(Array{{1, 2.5, nullptr, true}}).hex(), "23dbf6cdef58f9159c0f66765137cb8d1a5df52a");
  EXPECT_EQ(DhtId::of("run_progress").hex(), "238ce237adb7607e7230e2f38e3399674e67f1b7");
  EXPECT_EQ(DhtId::of("my_averager.0b0110").hex(), "186453cffe3a7482d0c41881aef6f8e405a8b9a6");
}

TEST(DhtId, DistanceIsXorAndBytesRoundTrip) {
  const DhtId a = DhtId::of("a"), b = DhtId::of("b");
  EXPECT_EQ(a.distance(a), DhtId{});
  EXPECT_EQ(a.distance(b), b.distance(a));
  EXPECT_EQ(a.distance(b).distance(b), a);
  EXPECT_EQ(DhtId::from_bytes(as_bytes(a.binary())), a);
  EXPECT_FALSE(DhtId::from_bytes(as_bytes(std::string(19, 'x'))));
  EXPECT_FALSE(DhtId::from_bytes(as_bytes(std::string(21, 'x'))));
}

TEST(Subkeys, AreTheSameWhenPythonHoldsThemEqual) {
  EXPECT_EQ(sub(1).identity, sub(true).identity);
  EXPECT_EQ(sub(1).identity, sub(1.0).identity);
  EXPECT_EQ(sub(0).identity, sub(false).identity);
  EXPECT_EQ(sub(0).identity, sub(-0.0).identity);
  EXPECT_EQ(sub(msgpack::Tuple{{1, true}}).identity, sub(msgpack::Tuple{{true, 1.0}}).identity);
  EXPECT_NE(sub("a").identity, sub(msgpack::Bin{"a"}).identity);
  EXPECT_NE(sub("1").identity, sub(1).identity);
  EXPECT_NE(sub(1.5).identity, sub(1).identity);
  EXPECT_EQ(sub("").encoded, "\xa0");
}

TEST(Subkeys, MustBeHashableAndShortlyEncoded) {
  EXPECT_FALSE(Subkey::from_value(msgpack::Array{{1}}));
  EXPECT_FALSE(Subkey::from_value(msgpack::Map{}));
  EXPECT_FALSE(Subkey::from_value(msgpack::Tuple{{msgpack::Array{}}}));
  EXPECT_FALSE(Subkey::from_value(nullptr)) << "means: a regular value";
  EXPECT_TRUE(Subkey::from_tag("\xa1z"));
  EXPECT_FALSE(Subkey::from_tag(std::string("\xcd\x00\x01", 3))) << "1 written in three bytes";
  EXPECT_FALSE(Subkey::from_tag("\xa1zz")) << "trailing bytes";
  EXPECT_FALSE(Subkey::from_tag("\xa5z")) << "truncated";
  EXPECT_TRUE(Subkey::from_tag(msgpack::encode(std::string(4000, 'z'))));
  EXPECT_FALSE(Subkey::from_tag(msgpack::encode(std::string(5000, 'z')))) << "longer than any that is stored";
}

TEST(Dictionary, EncodesAsHivemindDoesAndBack) {
  Dictionary dictionary;
  dictionary.put(sub("sub1"), "\x01", 2000000000.5);
  dictionary.put(sub(msgpack::Bin{"sub2"}), "\xa1v", 3000000000.25);
  const std::string encoded = dictionary.encoded();
  EXPECT_EQ(
      to_hex(as_bytes(encoded)),
      "c73a5093cb7ff0000000000000cb41e65a0bc00800009293a473756231c40101cb41ddcd650020000093c40473756232c402a176cb41e6"
      "5a0bc0080000");
  const auto back = Dictionary::decode(as_bytes(encoded), {}).value();
  EXPECT_EQ(back.entries().size(), 2u);
  EXPECT_EQ(back.latest_expiration(), 3000000000.25);
  EXPECT_EQ(back.encoded(), encoded);
  for (std::size_t size = 0; size < encoded.size(); ++size)
    EXPECT_FALSE(Dictionary::decode(as_bytes(encoded).first(size), {}));
}

TEST(Dictionary, DropsWhatHasExpiredWhetherOrNotItWasAskedForItsSenders) {
  Dictionary plain;
  for (const char* name : {"d", "a", "c", "e", "b"}) plain.put(sub(name), name, 10.0 * name[0]);  // 'a' is 97
  Dictionary asked = plain;
  EXPECT_EQ(asked.senders(), 1u);
  Dictionary copy = asked;
  for (Dictionary* dictionary : {&plain, &asked, &copy}) {
    EXPECT_TRUE(dictionary->put(sub("a"), "later", 1005)) << "a newer value";
    EXPECT_FALSE(dictionary->put(sub("e"), "earlier", 1000)) << "an older one";
    dictionary->drop_expired(1000);
    ASSERT_EQ(dictionary->entries().size(), 3u);
    EXPECT_EQ(dictionary->entries().at(sub("a").identity).value, "later");
    EXPECT_EQ(dictionary->encoded(), plain.encoded());
    EXPECT_EQ(dictionary->bytes(), plain.bytes());
    EXPECT_FALSE(dictionary->has_expired(1000));
    EXPECT_TRUE(dictionary->has_expired(1001));
  }
  copy.drop_of_largest(1);
  EXPECT_FALSE(copy.contains(sub("d"))) << "it would expire first";
  EXPECT_TRUE(asked.contains(sub("d"))) << "the copy's entries are its own";
}

TEST(Dictionary, SurvivesInsideOtherValues) {
  Dictionary dictionary;
  dictionary.put(sub("a"), "\x01", 100);
  msgpack::Value nested = msgpack::Array{{1, msgpack::decode(as_bytes(dictionary.encoded())).value(), "x"}};
  const auto back = msgpack::decode(as_bytes(msgpack::encode(nested))).value();
  const auto inner = msgpack::encode(back.get_if<msgpack::Array>()->items[1]);
  EXPECT_EQ(Dictionary::decode(as_bytes(inner), {}).value().entries().size(), 1u);
}

TEST(Dictionary, AHundredEntriesKeepTheirEncodingAfterChanges) {
  Dictionary dictionary;
  for (int i = 0; i < 100; ++i) dictionary.put(sub(i), std::string(static_cast<std::size_t>(i), 'v'), 100 + i);
  EXPECT_EQ(Dictionary::decode(as_bytes(dictionary.encoded()), {}).value().entries().size(), 100u);
  dictionary.drop_expired(150);
  EXPECT_EQ(Dictionary::decode(as_bytes(dictionary.encoded()), {}).value().entries().size(), 50u);
  EXPECT_EQ(dictionary.latest_expiration(), 199);
}

TEST(Dictionary, LeavesOutSingleMalformedEntriesAndRefusesTooMany) {
  using namespace msgpack;
  const Array entries{{Array{{"good", Bin{"\x01"}, 100.0}}, Array{{"no bytes", "text", 100.0}},
                       Array{{"short", Bin{"\x01"}}}, Array{{"never", Bin{"\x01"}, std::nan("")}},
                       Array{{"always", Bin{"\x01"}, INFINITY}}, Array{{Array{{1}}, Bin{"\x01"}, 100.0}},
                       Array{{"large", Bin{std::string(100, 'x')}, 100.0}}, 7}};
  std::string bytes;
  append_ext(bytes, 0x50, encode(Array{{INFINITY, 1e300, entries}}));
  std::size_t dropped = 0;
  const auto dictionary = Dictionary::decode(as_bytes(bytes), {.max_value_bytes = 50}, &dropped).value();
  EXPECT_EQ(dictionary.entries().size(), 1u);
  EXPECT_EQ(dropped, 7u);
  EXPECT_EQ(dictionary.latest_expiration(), 100) << "a claimed expiration counts for nothing";
  EXPECT_FALSE(Dictionary::decode(as_bytes(bytes), {.max_subkeys = 5}));
}

TEST(Storage, SmallEntriesCountWithTheMemoryThatTheyTake) {
  Storage storage({.max_bytes = 100'000});
  for (int key = 0; key < 100; ++key)
    for (int i = 0; i < 10; ++i) storage.store_subkey(DhtId::of(key), *Subkey::from_value(i), "\x01", 100 + key, 1);
  std::size_t entries = 0;
  Storage::Cursor all;
  for (const DhtId& key : storage.keys(all, 100)) entries += storage.get(key, 1)->dictionary()->entries().size();
  EXPECT_LT(entries, 230u) << "an entry takes four hundred bytes at least";
  EXPECT_GT(entries, 120u);
}

/// What the allocator gives for so many things, at the end of a test that counts.
struct Fill {
  const char* what;
  std::size_t value_bytes, senders;
  bool dictionaries;
};

TEST(Storage, CountsAsMuchMemoryAsItsRecordsTake) {
  for (const Fill& fill : {Fill{"small records", 1, 1, false}, Fill{"small records of many", 1, 5000, false},
                           Fill{"larger ones", 300, 1, false}, Fill{"small entries", 1, 1, true},
                           Fill{"small entries of many", 1, 2000, true}, Fill{"larger ones", 300, 10, true}}) {
    const std::size_t before = ::mallinfo2().uordblks;
    Storage storage({});
    for (int i = 0; i < 20'000; ++i) {
      const int sender = i % static_cast<int>(fill.senders);
      Bytes key(36, 0);
      std::memcpy(key.data(), &sender, sizeof sender);
      const PeerId from = PeerId::of_public_key(key);
      if (fill.dictionaries) {
        const std::string name = "a subkey that allocates " + std::to_string(i / 10);
        storage.store_subkey(DhtId::of(i % 10), sub(name), std::string(fill.value_bytes, 'x'), 100 + i, 1, from);
      } else {
        storage.store(DhtId::of(i), std::string(fill.value_bytes, 'x'), 100 + i, 1, from);
      }
    }
    const std::size_t taken = ::mallinfo2().uordblks - before;
    if (taken == 0) GTEST_SKIP() << "an allocator that does not tell";
    EXPECT_GE(storage.memory() * 101 / 100, taken) << fill.what;
    EXPECT_LE(storage.memory(), taken * 3 / 2) << fill.what;
  }
}

TEST(Storage, OfADictionaryIsHeldNoSecondCopyForThoseWhoAskForIt) {
  Storage storage({});
  for (int i = 0; i < 1000; ++i) storage.store_subkey(kKey, sub(i), std::string(1000, 'x'), 100, 1);
  const std::size_t before = ::mallinfo2().uordblks;
  EXPECT_GT(dictionary_at(storage, 1).encoded().size(), 1'000'000u);
  EXPECT_LT(::mallinfo2().uordblks - before, 1000u);
}

TEST(Dictionary, ASampleIsDrawnFromAllAndCostsWhatItYields) {
  std::mt19937_64 random(7);
  Dictionary dictionary;
  for (int i = 0; i < 10'000; ++i) dictionary.put(sub(i), std::to_string(i), 100 + i % 7);
  std::map<std::string, int> drawn;
  for (int i = 0; i < 20'000; ++i) {  // ten seconds when each looks at all entries
    const auto sample = Dictionary::decode(as_bytes(dictionary.encoded_sample(5, false, random)), {}).value();
    ASSERT_EQ(sample.entries().size(), 5u);
    for (const auto& [identity, entry] : sample.entries()) ++drawn[entry.value];
    dictionary.erase(sample.entries().begin()->first);  // what is left can still be drawn
    dictionary.put(sub(10'000 + i), std::to_string(10'000 + i), 100);
  }
  EXPECT_EQ(dictionary.entries().size(), 10'000u);
  int most = 0;
  for (const auto& [value, times] : drawn) most = std::max(most, times);
  EXPECT_GT(drawn.size(), 20'000u);
  EXPECT_LT(most, 60) << "one is drawn more often than chance would have it";
  const std::string all = dictionary.encoded_sample(20'000, false, random);
  EXPECT_EQ(Dictionary::decode(as_bytes(all), {}).value().entries().size(), 10'000u);
}

TEST(Dictionary, ASampleMayBeOfOwnersAlone) {
  std::mt19937_64 random(7);
  Dictionary dictionary;
  for (int i = 0; i < 1000; ++i) dictionary.put(sub(i), "of a stranger", 100);
  const auto owned = [](int i) { return sub("[owner:" + std::to_string(i) + "]"); };
  for (int i = 0; i < 9; ++i) dictionary.put(owned(i), "of owner " + std::to_string(i), 100);
  EXPECT_EQ(dictionary.drawable(true), 9u);
  EXPECT_EQ(dictionary.drawable(false), 1009u);
  const auto draw = [&](std::size_t count, bool only_owned) {
    return Dictionary::decode(as_bytes(dictionary.encoded_sample(count, only_owned, random)), {}).value();
  };
  std::set<std::string> seen;
  for (int i = 0; i < 50; ++i) {
    const Dictionary drawn = draw(3, true);
    for (const auto& [identity, entry] : drawn.entries()) seen.insert(entry.value);
  }
  EXPECT_EQ(seen.size(), 9u);
  EXPECT_FALSE(seen.contains("of a stranger"));
  EXPECT_EQ(draw(20, true).entries().size(), 9u);
  std::size_t of_owners = 0;
  for (int i = 0; i < 200; ++i) {
    const Dictionary drawn = draw(100, false);
    for (const auto& [identity, entry] : drawn.entries()) of_owners += entry.value != "of a stranger";
  }
  EXPECT_NEAR(static_cast<double>(of_owners), 200 * 100 * 9 / 1009.0, 60) << "as many as chance has it";
  dictionary.erase(owned(3).identity);
  EXPECT_EQ(dictionary.drawable(true), 8u);
}

TEST(Dictionary, IsReadWhateverSubkeysItsNodeTook) {
  Storage storage({.max_dictionary_bytes = 64 << 20});
  std::size_t kept = 0;
  for (int i = 0; i < 300; ++i) {
    msgpack::Tuple many{{i}};
    for (int part = 0; part < 4000; ++part) many.items.emplace_back(part % 100);
    kept += storage.store_subkey(kKey, sub(many), "v", 100, 0);
  }
  EXPECT_EQ(kept, 300u) << "four thousand numbers each, in four kilobytes";
  EXPECT_TRUE(storage.store_subkey(kKey, sub("honest"), "v", 100, 0));
  const auto read = Dictionary::decode(as_bytes(dictionary_at(storage, 0).encoded()), {});
  ASSERT_TRUE(read) << "one stranger would hide all entries of others: " << read.error();
  EXPECT_EQ(read->entries().size(), 301u);
}

TEST(Storage, ManyRecordsThatExpireTogetherGoBitByBit) {
  Storage storage({});
  for (int key = 0; key < 10; ++key)
    for (int i = 0; i < 1000; ++i) storage.store_subkey(DhtId::of(key), sub(i), "v", 100, 0);
  EXPECT_EQ(storage.size(0), 10u);
  storage.store(kKey, "v", 300, 200);
  EXPECT_GE(storage.size(), 9u) << "of ten thousand entries a tenth in one call";
  for (int i = 0; i < 10; ++i) storage.store(DhtId::of(100 + i), "v", 300, 200);
  EXPECT_EQ(storage.size(), 11u);
}

TEST(Storage, ManyEntriesThatExpireTogetherGoBitByBit) {
  Storage storage({});
  for (int i = 0; i < 5000; ++i) storage.store_subkey(kKey, sub(i), "v", 100, 0);
  storage.store_subkey(kKey, sub("last"), "v", 300, 0);
  EXPECT_GT(dictionary_at(storage, 200).entries().size(), 3900u) << "of five thousand entries a fifth in one call";
  storage.store_subkey(kKey, sub("new"), "v", 300, 200);
  EXPECT_GT(dictionary_at(storage, 200).entries().size(), 1900u);
  for (int i = 0; i < 2; ++i) (void)storage.get(kKey, 200);
  EXPECT_EQ(dictionary_at(storage, 200).entries().size(), 2u);
  EXPECT_LT(storage.memory(), 5000u) << "and nothing is counted that is not there";
}

TEST(Storage, KeysAreWalkedInPiecesWhileRecordsComeAndGo) {
  Storage storage({});
  for (int i = 0; i < 100; ++i) storage.store(DhtId::of(i), "v", 100 + i / 2, 0);
  Storage::Cursor at;
  std::set<DhtId> seen;
  for (auto keys = storage.keys(at, 7); !keys.empty(); keys = storage.keys(at, 7)) {
    for (const DhtId& key : keys) EXPECT_TRUE(seen.insert(key).second);
    storage.forget(keys.front());
  }
  EXPECT_EQ(seen.size(), 100u);
}

TEST(Storage, ANewerExpirationReplacesAndAnOlderOneIsRefused) {
  Storage storage({});
  EXPECT_TRUE(storage.store(kKey, "a", 100, 0));
  EXPECT_FALSE(storage.store(kKey, "b", 100, 0));
  EXPECT_FALSE(storage.store(kKey, "b", 50, 0));
  EXPECT_TRUE(storage.store(kKey, "b", 101, 0));
  EXPECT_EQ(*storage.get(kKey, 1)->value(), "b");
  EXPECT_EQ(*storage.get(kKey, 101)->value(), "b") << "valid up to its expiration";
  EXPECT_EQ(storage.get(kKey, 102), nullptr);
  EXPECT_EQ(storage.size(102), 0u);
  EXPECT_FALSE(storage.store(kKey, "late", 5, 10)) << "already expired";
  EXPECT_FALSE(storage.store(kKey, "never", std::nan(""), 10));
  EXPECT_FALSE(storage.store(kKey, "always", INFINITY, 10));
}

TEST(Storage, ARefusedOlderStoreDoesNotShortenTheLifeOfTheNewerValue) {
  Storage storage({});
  EXPECT_TRUE(storage.store(kKey, "new", 100, 0));
  EXPECT_FALSE(storage.store(kKey, "old", 50, 0));
  storage.store(DhtId::of("other"), "x", 90, 60);  // lets expired ones go
  ASSERT_NE(storage.get(kKey, 60), nullptr);
  EXPECT_EQ(*storage.get(kKey, 60)->value(), "new");
}

TEST(Storage, DictionariesFollowTheRulesOfHivemind) {
  Storage storage({});
  EXPECT_TRUE(storage.store(kKey, "plain", 10, 0));
  EXPECT_FALSE(storage.store_subkey(kKey, sub("a"), "1", 10, 0))
      << "a regular value that is not older blocks a dictionary";
  EXPECT_TRUE(storage.store_subkey(kKey, sub("a"), "1", 20, 0));
  EXPECT_FALSE(storage.store_subkey(kKey, sub("a"), "2", 20, 0));
  EXPECT_TRUE(storage.store_subkey(kKey, sub("a"), "2", 21, 0));
  EXPECT_TRUE(storage.store_subkey(kKey, sub("b"), "3", 15, 0));
  EXPECT_EQ(storage.get(kKey, 1)->expiration, 21) << "the latest of all subkeys";
  EXPECT_EQ(dictionary_at(storage, 1).entries().size(), 2u);
  EXPECT_EQ(dictionary_at(storage, 16).entries().size(), 1u) << "b has expired";
  EXPECT_FALSE(storage.store(kKey, "plain", 21, 0)) << "a regular value must be newer than the whole dictionary";
  EXPECT_TRUE(storage.store(kKey, "plain", 22, 0));
  EXPECT_EQ(*storage.get(kKey, 1)->value(), "plain");
}

TEST(Storage, EqualSubkeysAreOneEntry) {
  Storage storage({});
  EXPECT_TRUE(storage.store_subkey(kKey, sub(1), "int", 20, 0));
  EXPECT_FALSE(storage.store_subkey(kKey, sub(true), "bool", 20, 0));
  EXPECT_TRUE(storage.store_subkey(kKey, sub(true), "bool", 21, 0));
  ASSERT_EQ(dictionary_at(storage, 0).entries().size(), 1u);
  EXPECT_EQ(dictionary_at(storage, 0).entries().begin()->second.subkey, "\xc3");
}

TEST(Storage, AWholeDictionaryIsMergedEntryByEntry) {
  Storage storage({});
  storage.store_subkey(kKey, sub("a"), "mine", 50, 0);
  Dictionary theirs;
  theirs.put(sub("a"), "theirs", 40);
  theirs.put(sub("b"), "theirs", 60);
  EXPECT_FALSE(storage.store_dictionary(kKey, theirs, 0)) << "not everything was accepted";
  EXPECT_EQ(dictionary_at(storage, 0).entries().at(sub("a").identity).value, "mine");
  EXPECT_EQ(dictionary_at(storage, 0).entries().at(sub("b").identity).value, "theirs");
  EXPECT_EQ(storage.get(kKey, 0)->expiration, 60);
  EXPECT_FALSE(storage.store_dictionary(kKey, Dictionary(), 0));
}

TEST(Storage, WhatExpiresFirstMakesRoom) {
  Storage storage({.max_records = 2});
  EXPECT_TRUE(storage.store(DhtId::of("1"), "a", 100, 0));
  EXPECT_TRUE(storage.store(DhtId::of("2"), "b", 50, 0));
  EXPECT_TRUE(storage.store(DhtId::of("3"), "c", 70, 0));
  EXPECT_EQ(storage.size(0), 2u);
  EXPECT_EQ(storage.get(DhtId::of("2"), 0), nullptr);
  EXPECT_FALSE(storage.store(DhtId::of("4"), "d", 60, 0)) << "it would itself be the first to go";
}

TEST(Storage, KeepsWithinItsBytes) {
  constexpr std::size_t kRecord = 1000 + kRecordMemory;
  Storage storage({.max_value_bytes = 1000, .max_bytes = kSenderMemory + 2 * kRecord + 100});
  EXPECT_FALSE(storage.store(kKey, std::string(1001, 'x'), 100, 0));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(storage.store(DhtId::of(i), std::string(1000, 'x'), 100 + i, 0));
  EXPECT_LE(storage.memory(), kSenderMemory + 2 * kRecord);
  EXPECT_EQ(storage.size(0), 2u);
  EXPECT_TRUE(storage.store(DhtId::of(9), "y", 200, 0)) << "a replaced value gives its bytes back";
  EXPECT_EQ(storage.memory(), kSenderMemory + kRecord + 1 + kRecordMemory);
}

TEST(Storage, ADictionaryKeepsItsLatestSubkeysWithinItsBounds) {
  Storage storage({.max_subkeys = 3, .max_dictionary_bytes = 400});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(storage.store_subkey(kKey, sub(i), "v", 100 + i, 0));
  EXPECT_EQ(dictionary_at(storage, 0).entries().size(), 3u);
  EXPECT_FALSE(storage.store_subkey(kKey, sub(9), "v", 50, 0)) << "older than all that is there";
  EXPECT_TRUE(storage.store_subkey(kKey, sub(9), std::string(300, 'x'), 200, 0));
  EXPECT_LE(dictionary_at(storage, 0).bytes(), 400u);
  EXPECT_TRUE(dictionary_at(storage, 0).contains(sub(9)));
  EXPECT_FALSE(storage.store_subkey(kKey, sub(std::string(5000, 's')), "v", 300, 0)) << "a subkey that is too long";
}

TEST(Storage, KnowsBeforehandWhatItWouldRefuse) {
  Storage storage({});
  storage.store_subkey(kKey, sub("a"), "1", 20, 0);
  const Subkey a = sub("a"), b = sub("b");
  EXPECT_FALSE(storage.would_accept(kKey, &a, 20, 0));
  EXPECT_TRUE(storage.would_accept(kKey, &a, 21, 0));
  EXPECT_TRUE(storage.would_accept(kKey, &b, 5, 0));
  EXPECT_FALSE(storage.would_accept(kKey, &b, 5, 6));
  EXPECT_FALSE(storage.would_accept(kKey, nullptr, 20, 0));
}

PeerId storer(std::uint8_t number) {
  return PeerId::of_public_key(Bytes(36, number));
}

TEST(Storage, WhoTakesUpMostRoomMakesRoom) {
  Storage storage({.max_records = 100});
  const PeerId greedy = storer(1), modest = storer(2);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(storage.store(DhtId::of(i), "short-lived", 10, 0, modest));
  for (int i = 100; i < 500; ++i) storage.store(DhtId::of(i), "for a week", 1000 + i, 0, greedy);
  EXPECT_EQ(storage.size(), 100u);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(storage.get(DhtId::of(i), 0)) << "pushed out by a greedy peer";
  for (int i = 10; i < 40; ++i) EXPECT_TRUE(storage.store(DhtId::of(i), "short-lived", 10, 0, modest));
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(storage.get(DhtId::of(i), 0));
  EXPECT_EQ(storage.size(), 100u);
}

TEST(Storage, AFloodOfEntriesPushesOutNoEntryOfOthers) {
  Storage storage({.max_subkeys = 1000});
  for (std::uint8_t i = 0; i < 50; ++i)
    EXPECT_TRUE(storage.store_subkey(kKey, sub("honest " + std::to_string(i)), "v", 60, 0, storer(i)));
  for (int i = 0; i < 3000; ++i) storage.store_subkey(kKey, sub(i), "flood", 600'000 + i, 0, storer(200));
  const auto held = [&] {
    std::size_t count = 0;
    for (const auto& [identity, entry] : dictionary_at(storage, 0).entries()) count += entry.expiration == 60;
    return count;
  };
  EXPECT_EQ(held(), 50u);
  EXPECT_EQ(dictionary_at(storage, 0).entries().size(), 1000u);
  EXPECT_TRUE(storage.store_subkey(kKey, sub("late"), "v", 60, 0, storer(51))) << "there is room for newcomers";
  EXPECT_EQ(held(), 51u);
  for (int i = 0; i < 30; ++i)
    storage.store_subkey(kKey, sub(-1 - i), std::string(200'000, 'x'), 600'000 + i, 0, storer(201));
  EXPECT_EQ(held(), 51u) << "the same in bytes";
  EXPECT_EQ(storage.size(1e7), 0u);
  EXPECT_EQ(storage.memory(), 0u);
}

TEST(Storage, ACrowdOfLongLivedEntriesDoesNotPushOutShortLivedOnes) {
  Storage storage({.max_subkeys = 100});
  for (std::uint8_t i = 0; i < 50; ++i)
    EXPECT_TRUE(storage.store_subkey(kKey, sub("honest " + std::to_string(i)), "v", 60, 0, storer(i)));
  for (int i = 0; i < 1000; ++i) {
    Bytes key(36, 250);
    std::memcpy(key.data(), &i, sizeof i);
    storage.store_subkey(kKey, sub(i), "crowd", 600'000, 0, PeerId::of_public_key(key));
  }
  std::size_t honest = 0;
  for (const auto& [identity, entry] : dictionary_at(storage, 0).entries()) honest += entry.expiration == 60;
  EXPECT_EQ(honest, 50u);
}

TEST(Storage, APlainValueTakesNoPlaceOfADictionaryThatSeveralKeepUp) {
  Storage storage({});
  EXPECT_TRUE(storage.store_subkey(kKey, sub("a"), "1", 60, 0, storer(1)));
  EXPECT_TRUE(storage.store_subkey(kKey, sub("b"), "2", 60, 0, storer(2)));
  EXPECT_FALSE(storage.would_accept(kKey, nullptr, 600'000, 0));
  EXPECT_FALSE(storage.store(kKey, "plain", 600'000, 0, storer(3)));
  EXPECT_EQ(dictionary_at(storage, 0).entries().size(), 2u);
  EXPECT_TRUE(storage.store(kKey, "plain", 600'000, 61, storer(3))) << "once it has expired";
}

TEST(Storage, APlainValueTakesNoPlaceOfADictionaryThatCameWhole) {
  Storage storage({});
  EXPECT_TRUE(storage.store_subkey(kKey, sub("a"), "1", 60, 0, storer(1), true));
  EXPECT_TRUE(storage.store_subkey(kKey, sub("b"), "2", 90, 0, storer(1), true));
  EXPECT_FALSE(storage.would_accept(kKey, nullptr, 600'000, 0));
  EXPECT_FALSE(storage.store(kKey, "plain", 600'000, 0, storer(3)));
  EXPECT_EQ(dictionary_at(storage, 61).entries().size(), 1u);
  EXPECT_TRUE(storage.store(kKey, "plain", 600'000, 61, storer(3))) << "what is left is of one peer";
}

TEST(Storage, WhoFloodsADictionaryPaysForItsRoom) {
  Storage storage({.max_bytes = 100'000});
  const PeerId honest = storer(1), greedy = storer(2);
  EXPECT_TRUE(storage.store_subkey(kKey, sub("a"), "1", 60, 0, honest));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(storage.store(DhtId::of(i), std::string(1000, 'x'), 60, 0, honest));
  for (int i = 0; i < 1000; ++i) storage.store_subkey(kKey, sub(i), std::string(100, 'x'), 600'000, 0, greedy);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(storage.get(DhtId::of(i), 0)) << i;
  EXPECT_TRUE(dictionary_at(storage, 0).contains(sub("a"))) << "what others put there stays";
  EXPECT_LE(storage.memory(), 100'000u);
}

TEST(Storage, SharesAreCountedInBytesToo) {
  Storage storage({.max_bytes = 10'000});
  const PeerId greedy = storer(1), modest = storer(2);
  EXPECT_TRUE(storage.store(DhtId::of("small"), std::string(500, 'x'), 10, 0, modest));
  for (int i = 0; i < 50; ++i)
    storage.store_subkey(DhtId::of(i), *Subkey::from_value("subkey"), std::string(1000, 'x'), 1000 + i, 0, greedy);
  EXPECT_LE(storage.memory(), 10'000u);
  EXPECT_TRUE(storage.get(DhtId::of("small"), 0));
  // All of it goes again: nothing is left in any account.
  EXPECT_EQ(storage.size(1e6), 0u);
  EXPECT_EQ(storage.memory(), 0u);
}

}  // namespace
}  // namespace cohive::dht
