// An exchange that does as another one does, but for what a test overrides.
#pragma once

#include <memory>
#include <utility>

#include "cohive/train/exchange.hpp"

namespace cohive::train {

class ForwardingExchange : public Exchange {
 public:
  explicit ForwardingExchange(std::unique_ptr<Exchange> to) : to_(std::move(to)) {}

  const std::string& name() const override { return to_->name(); }
  averaging::Averager& averager() override { return to_->averager(); }
  void start() override { to_->start(); }
  bool due(std::uint64_t epoch) const override { return to_->due(epoch); }
  bool makes_step() const override { return to_->makes_step(); }
  bool needs_every_round() const override { return to_->needs_every_round(); }
  bool takes_place_beside_epochs() const override { return to_->takes_place_beside_epochs(); }
  bool keeps_unaveraged() const override { return to_->keeps_unaveraged(); }
  bool yields_parameters() const override { return to_->yields_parameters(); }
  bool follows(std::uint64_t epoch) const override { return to_->follows(epoch); }
  bool is_divided() const override { return to_->is_divided(); }
  bool yields_to_divided_rounds() const override { return to_->yields_to_divided_rounds(); }
  averaging::RoundCodecs codecs(const std::vector<averaging::Member>& members, bool divided) override {
    return to_->codecs(members, divided);
  }
  Duration patience() const override { return to_->patience(); }
  msgpack::Value greeting(std::uint64_t epoch) const override { return to_->greeting(epoch); }
  Release release(const Moment& moment) const override { return to_->release(moment); }
  Task<void> hold() override { return to_->hold(); }
  Task<void> prepare(const Moment& moment) override { return to_->prepare(moment); }
  Task<Offer> offer(const Moment& moment) override { return to_->offer(moment); }
  Task<Effect> take(const Moment& moment, const averaging::RoundReport* round) override {
    return to_->take(moment, round);
  }
  Task<void> drop() override { return to_->drop(); }
  std::vector<Kept> kept() override { return to_->kept(); }
  Task<void> complete(averaging::SharedState& state) override { return to_->complete(state); }
  bool lacks_kept_alone() const override { return to_->lacks_kept_alone(); }
  Task<void> alone() override { return to_->alone(); }
  Task<void> renewing() override { return to_->renewing(); }
  Task<void> replacing() override { return to_->replacing(); }
  Task<void> reset() override { return to_->reset(); }
  Task<void> loaded() override { return to_->loaded(); }
  Task<void> download(Deadline deadline) override { return to_->download(deadline); }
  Task<std::vector<checkpoint::NamedTensor>> save() override { return to_->save(); }
  Task<Result<>> restore(std::vector<checkpoint::NamedTensor> saved) override { return to_->restore(std::move(saved)); }

 private:
  const std::unique_ptr<Exchange> to_;
};

}  // namespace cohive::train
