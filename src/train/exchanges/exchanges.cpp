#include "exchanges.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <stdexcept>

#include "cohive/core/log.hpp"
#include "cohive/train/run_options.hpp"
#include "outer_step.hpp"
#include "parameter_greeting.hpp"

namespace cohive::train {
namespace {

// Before a round was measured it may take as long as rounds of local steps may last.
constexpr Duration kThinLink = 10min, kThinLinkPart = 30s;

}  // namespace

averaging::AveragerOptions averager_options(const RunOptions& options, const std::string& suffix,
                                            const std::string& class_name) {
  averaging::AveragerOptions result;
  result.prefix = options.run_id + suffix;
  result.class_name = class_name;
  result.min_matchmaking_time = options.matchmaking_time;
  result.request_timeout = std::min<Duration>(result.request_timeout, options.matchmaking_time / 2);
  result.allreduce_timeout = options.allreduce_timeout.value_or(options.averaging_timeout);
  result.sender_timeout = options.next_chunk_timeout.value_or(options.matchmaking_time);
  result.verified_share = options.verified_share;
  result.bandwidth = options.bandwidth;
  if (options.fit_target_batch_size || options.fit_compression) result.measures_link = true;
  if (options.outer_optimizer) {
    if (!options.allreduce_timeout) result.allreduce_timeout = std::max<Duration>(result.allreduce_timeout, kThinLink);
    if (!options.next_chunk_timeout) result.sender_timeout = std::max<Duration>(result.sender_timeout, kThinLinkPart);
  }
  result.reducer_timeout = result.sender_timeout * 2;
  result.mode = options.client_mode ? averaging::PeerMode::client
                : options.auxiliary ? averaging::PeerMode::auxiliary
                                    : averaging::PeerMode::node;
  return result;
}

bool Exchange::is_late(const averaging::Member& member, const averaging::Member& own) const {
  if (!makes_step() && !yields_parameters()) return false;
  const auto theirs = ParameterGreeting::of(member).epoch;
  return theirs && *theirs < ParameterGreeting::of(own).epoch.value_or(0);
}

std::vector<std::unique_ptr<Exchange>> make_exchanges(const ExchangeContext& context, std::shared_ptr<LinkFit> fit) {
  std::vector<std::unique_ptr<Exchange>> exchanges;
  if (const auto& outer = context.options.outer_optimizer) {
    // A repair's offer releases the trainer, and a step's reads the parameters before that: steps come first.
    std::vector<std::unique_ptr<Exchange>> repairs;
    for (auto& fragment : fragments_of(context.replica.gradient_infos(), static_cast<std::size_t>(outer->fragments))) {
      auto step = std::make_unique<OuterStep>(context, *outer, std::move(fragment), fit);
      repairs.push_back(anchor_repair(context, step->memory(), *outer));
      exchanges.push_back(std::move(step));
    }
    std::ranges::move(repairs, std::back_inserter(exchanges));
    return exchanges;
  }
  std::vector<ExchangeFactory> factories;
  if (!context.options.use_local_updates) factories.emplace_back(gradient_exchange);
  factories.push_back(context.options.parameter_exchange ? context.options.parameter_exchange
                                                         : ExchangeFactory(parameter_exchange));
  std::set<std::string> names;
  for (const auto& make : factories) {
    auto made = make(context);
    if (!made) throw std::invalid_argument("cohive: parameter_exchange has made no exchange");
    if (!names.insert(made->name()).second)
      throw std::invalid_argument("cohive: a run has two exchanges of " + log::quoted(made->name()) +
                                  ": give parameter_exchange's another name");
    if (made->makes_step() && !exchanges.empty())
      throw std::invalid_argument("cohive: the exchange of " + log::quoted(made->name()) +
                                  " steps the optimizer, and so do the gradients: set use_local_updates");
    exchanges.push_back(std::move(made));
  }
  return exchanges;
}

}  // namespace cohive::train
