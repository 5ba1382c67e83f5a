// Validators in concert: schemas, merging, order.
#include "cohive/dht/validation.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "cohive/dht/schema.hpp"
#include "dht/composite_validator.hpp"

namespace cohive::dht {
namespace {

using namespace msgpack;
using msgpack::Value;

const std::string kRegular = "\xc0";

Record regular(const std::string& key, const Value& value) {
  return {DhtId::of(key).binary(), kRegular, encode(value), 1700000000.5};
}
Record entry(const std::string& key, const Value& subkey, const Value& value) {
  return {DhtId::of(key).binary(), encode(subkey), encode(value), 1700000000.5};
}

SchemaFields sample() {
  return {{"experiment_name", SchemaType::string()},
          {"n_batches", SchemaType::map(SchemaType::bytes_with_public_key(), SchemaType::integer(0))},
          {"signed", SchemaType::map(SchemaType::bytes(), SchemaType::string())},
          {"pairs", SchemaType::list(SchemaType::tuple({SchemaType::integer(), SchemaType::number()}))}};
}

const Value kOwned = Bin{"uid [owner:ssh-rsa AAAA] more"};

TEST(Schema, TellsRegularValuesFromDictionaries) {
  SchemaValidator schema(sample());
  EXPECT_TRUE(schema.validate(regular("experiment_name", "foo_bar")));
  EXPECT_FALSE(schema.validate(entry("experiment_name", "sub", "foo_bar")));
  EXPECT_TRUE(schema.validate(entry("n_batches", kOwned, 777)));
  EXPECT_FALSE(schema.validate(regular("n_batches", 777)));
  EXPECT_FALSE(schema.validate(regular("n_batches", Map{{{kOwned, 777}}}))) << "a map posing as a dictionary";
  EXPECT_TRUE(schema.validate(regular("pairs", Array{{Tuple{{1, 2.0}}}})));
}

TEST(Schema, ConvertsNothing) {
  SchemaValidator schema(sample());
  for (const Value& wrong : std::vector<Value>{779.0, "777", true, nullptr, -1, Array{}, Bin{"777"}})
    EXPECT_FALSE(schema.validate(entry("n_batches", kOwned, wrong)));
  for (const Value& wrong : std::vector<Value>{1, Bin{"foo"}, nullptr, Array{}, Map{}})
    EXPECT_FALSE(schema.validate(regular("experiment_name", wrong)));
  EXPECT_FALSE(schema.validate(regular("pairs", Tuple{{Tuple{{1, 2.0}}}}))) << "a tuple is no list";
  EXPECT_FALSE(schema.validate(regular("pairs", Array{{Array{{1, 2.0}}}})));
  EXPECT_FALSE(schema.validate(regular("pairs", Array{{Tuple{{1, 2}}}})));
  EXPECT_FALSE(schema.validate(regular("pairs", "")));
  Record broken = regular("experiment_name", "x");
  broken.value = "\xc1";
  EXPECT_FALSE(schema.validate(broken));
  broken.value = encode("x") + "x";
  EXPECT_FALSE(schema.validate(broken)) << "trailing bytes";
}

TEST(Schema, AsksForAnOwnerInTheSubkey) {
  SchemaValidator schema(sample());
  for (const Value& wrong : std::vector<Value>{Bin{"uid"}, "uid [owner:ssh-rsa AAAA]", Bin{"[owner:]"}, Bin{"[owner:x"},
                                               Bin{"\n[owner:x]"}, 1})
    EXPECT_FALSE(schema.validate(entry("n_batches", wrong, 777)));
  EXPECT_TRUE(schema.validate(entry("signed", Bin{"anything"}, "x")));
}

TEST(Schema, ExtraKeysAreAMatterOfPolicy) {
  SchemaValidator lenient(sample()), strict(sample(), "", false);
  EXPECT_TRUE(lenient.validate(regular("unknown", 1)));
  EXPECT_FALSE(strict.validate(regular("unknown", 1)));
  EXPECT_TRUE(strict.validate(regular("experiment_name", "x")));
}

TEST(Schema, APrefixIsPartOfTheKeys) {
  SchemaValidator schema(sample(), "run", false);
  EXPECT_TRUE(schema.validate(regular("run_experiment_name", "x")));
  EXPECT_FALSE(schema.validate(regular("experiment_name", "x")));
}

TEST(Schema, MergedSchemasAcceptEither) {
  SchemaValidator first(sample(), "", false);
  ASSERT_TRUE(first.merge_with(
      SchemaValidator({{"experiment_name", SchemaType::integer()}, {"more", SchemaType::any()}}, "", false)));
  EXPECT_TRUE(first.validate(regular("experiment_name", "x")));
  EXPECT_TRUE(first.validate(regular("experiment_name", 5)));
  EXPECT_FALSE(first.validate(regular("experiment_name", 5.5)));
  EXPECT_TRUE(first.validate(regular("more", nullptr)));
  EXPECT_FALSE(first.validate(regular("unknown", 1)));
  ASSERT_TRUE(first.merge_with(SchemaValidator({}, "", true)));
  EXPECT_TRUE(first.validate(regular("unknown", 1)));
  EXPECT_FALSE(first.merge_with(RsaSignatureValidator()));
}

TEST(Schema, KnowsTheProgressOfTrainers) {
  SchemaValidator schema(training_progress_schema(), "run");
  const Map good{{{"peer_id", Bin{"\x12\x20"}},
                  {"epoch", 0},
                  {"samples_accumulated", 5},
                  {"samples_per_second", 1e-20},
                  {"time", -1.5},
                  {"client_mode", true}}};
  EXPECT_TRUE(schema.validate(entry("run_progress", kOwned, good)));
  EXPECT_TRUE(schema.validate(entry("run_progress", kOwned, nullptr)));
  const std::vector<std::pair<std::size_t, Value>> wrong = {
      {0, "text"}, {1, -1}, {1, 1.0}, {2, nullptr}, {3, 0}, {3, -1.0}, {3, std::nan("")}, {4, 1}, {5, 1}};
  for (const auto& [field, value] : wrong) {
    Map bad = good;
    bad.entries[field].second = value;
    EXPECT_FALSE(schema.validate(entry("run_progress", kOwned, bad))) << good.entries[field].first.storage().index();
  }
  Map extra = good, missing = good, doubled = good;
  extra.entries.emplace_back("more", 1);
  missing.entries.pop_back();
  doubled.entries[5] = doubled.entries[4];
  for (const auto& bad : {extra, missing, doubled}) EXPECT_FALSE(schema.validate(entry("run_progress", kOwned, bad)));
}

/// Appends a letter when signing.
struct Letter final : RecordValidator {
  Letter(char letter, int rank) : letter_(letter), rank_(rank) {}
  bool validate(const Record& record) const override { return !record.value.empty() && record.value.back() == letter_; }
  std::string sign_value(const Record& record) const override { return record.value + letter_; }
  std::string strip_value(const Record& record) const override {
    return record.value.substr(0, record.value.size() - 1);
  }
  int priority() const override { return rank_; }
  char letter_;
  int rank_;
};

TEST(CompositeValidator, SignsUpwardsAndChecksDownwardsWhateverTheOrderOfAdding) {
  for (const bool reversed : {false, true}) {
    CompositeValidator all;
    auto low = std::make_shared<Letter>('a', 1), high = std::make_shared<Letter>('b', 2);
    reversed ? (all.add(high), all.add(low)) : (all.add(low), all.add(high));
    Record record{std::string(20, 'k'), kRegular, "v", 1};
    record.value = all.sign(record);
    EXPECT_EQ(record.value, "vab");
    EXPECT_TRUE(all.validate(record));
    EXPECT_EQ(all.strip(record), "v");
    record.value = "vba";
    EXPECT_FALSE(all.validate(record));
  }
}

TEST(CompositeValidator, SchemaSeesTheValueWithoutItsSignature) {
  CompositeValidator all;
  auto owner = std::make_shared<RsaSignatureValidator>();
  all.add(owner);
  all.add(std::make_shared<SchemaValidator>(sample()));
  Record record = entry("n_batches", Bin{owner->ownership_marker()}, 777);
  record.value = all.sign(record);
  EXPECT_TRUE(all.validate(record));
  EXPECT_EQ(all.strip(record), encode(777));
  Record wrong = entry("n_batches", Bin{owner->ownership_marker()}, 777.0);
  wrong.value = all.sign(wrong);
  EXPECT_FALSE(all.validate(wrong)) << "signed, but not what the schema asks for";
}

TEST(CompositeValidator, MergesSoThatARecordIsSignedOnce) {
  CompositeValidator all;
  auto first = std::make_shared<RsaSignatureValidator>(), second = std::make_shared<RsaSignatureValidator>();
  all.add(first);
  all.add(second);
  all.add(std::make_shared<SchemaValidator>(sample()));
  all.add(std::make_shared<SchemaValidator>(sample()));
  EXPECT_EQ(all.size(), 2u);
  Record record = entry("signed", Bin{first->ownership_marker()}, "x");
  record.value = all.sign(record);
  EXPECT_EQ(record.value.size(), 2u + 356u);
  EXPECT_TRUE(all.validate(record));
  Record others = entry("signed", Bin{second->ownership_marker()}, "x");
  EXPECT_EQ(all.sign(others), others.value) << "the first key keeps signing";
}

}  // namespace
}  // namespace cohive::dht
