// What monitors of a run hear of a trainer's loss.
#include "train/metrics_record.hpp"

#include <cmath>

#include "cohive/testing/cheap_keys.hpp"
#include "dht/dht_swarm.hpp"

namespace cohive::train {
namespace {

class LossRecord : public dht::DhtSwarm {
 protected:
  void SetUp() override {
    Dht& node = add();
    tasks = std::make_unique<TaskGroup>(node.runtime(), "losses");
    key = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(1));
    node.add_validator(key);
    record = std::make_unique<MetricsRecord>(node, key, "run", *tasks);
    reader = &add();
    reader->add_validator(std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(2)));
  }
  void TearDown() override {
    tasks.reset();
    record.reset();
  }
  /// The fields of the only trainer; empty when nothing is told.
  std::map<std::string, double> told() {
    const auto found = get(*reader, "run_metrics", true);
    if (!found || found->entries().size() != 1) return {};
    const auto& [subkey, stored] = found->entries().front();
    EXPECT_EQ(subkey, msgpack::Value(msgpack::Bin{key->ownership_marker()}));
    std::map<std::string, double> fields;
    for (const char* name : {"step", "samples_per_second", "samples_accumulated", "loss", "mini_steps"})
      fields[name] = stored.value.get_if<msgpack::Map>()->find(name)->as_number().value();
    return fields;
  }

  std::shared_ptr<dht::RsaSignatureValidator> key;
  std::unique_ptr<TaskGroup> tasks;
  std::unique_ptr<MetricsRecord> record;
  Dht* reader = nullptr;
};

TEST_F(LossRecord, TellsTheSumOfTheLossesOfAnEpoch) {
  for (const double loss : {2.0, 4.0, std::nan(""), 3.0}) {
    record->add_samples(8);
    record->add_loss(loss);
  }
  record->publish(1, 12.5, 1);
  swarm.pass(5s);
  EXPECT_EQ(
      told(),
      (std::map<std::string, double>{
          {"step", 1}, {"samples_per_second", 12.5}, {"samples_accumulated", 32}, {"loss", 9}, {"mini_steps", 3}}));
  record->add_samples(8);
  record->add_loss(1);
  record->publish(2, 12.5, 1);
  swarm.pass(5s);
  EXPECT_EQ(told()["loss"], 1);
  EXPECT_EQ(told()["step"], 2);
}

TEST_F(LossRecord, ATrainerWithoutALossTellsNothing) {
  record->add_samples(8);
  record->publish(1, 12.5, 1);
  swarm.pass(5s);
  EXPECT_TRUE(told().empty());
}

TEST_F(LossRecord, OfALargeRunAHundredTrainersOrSoTell) {
  constexpr std::size_t kTrainers = 1280;
  std::vector<std::unique_ptr<Dht>> trainers;
  std::vector<std::unique_ptr<MetricsRecord>> records;
  for (std::size_t i = 0; i < kTrainers; ++i) {
    trainers.push_back(std::make_unique<Dht>(swarm.add_host()));
    records.push_back(std::make_unique<MetricsRecord>(*trainers.back(), key, "run", *tasks));
  }
  std::size_t tell = 0;
  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
    for (auto& one : records) {
      one->add_loss(1);
      one->publish(epoch, 1, kTrainers);
    }
    if (epoch == 1) tell = tasks->size();
    EXPECT_EQ(tasks->size(), tell * epoch) << "the same ones in each epoch";
  }
  EXPECT_GT(tell, 90u);
  EXPECT_LT(tell, 170u);
  tasks->cancel();
  records.clear();
}

TEST_F(LossRecord, OnlyTheOwnerOfTheKeyWrites) {
  record->add_loss(2);
  record->publish(1, 1, 1);
  swarm.pass(5s);
  msgpack::Value forged = msgpack::Map{{{"step", std::uint64_t{9}},
                                        {"samples_per_second", 1.0},
                                        {"samples_accumulated", std::uint64_t{1}},
                                        {"loss", 0.0},
                                        {"mini_steps", std::uint64_t{1}}}};
  EXPECT_FALSE(store(*reader, "run_metrics", msgpack::Bin{key->ownership_marker()}, forged, in(900)));
  EXPECT_EQ(told()["loss"], 2);
}

}  // namespace
}  // namespace cohive::train
