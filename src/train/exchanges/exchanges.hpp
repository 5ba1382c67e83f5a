// What a run averages, in this order: gradients by which the optimizer steps, then parameters.
#pragma once

#include <memory>
#include <vector>

#include "cohive/train/exchange.hpp"

namespace cohive::train {

class LinkFit;

/// Averages gradients, weighted by samples, and steps with them: in every epoch.
std::unique_ptr<Exchange> gradient_exchange(const ExchangeContext& context);
/// Averages parameters, and what the model averages beside them: every few epochs.
std::unique_ptr<Exchange> parameter_exchange(const ExchangeContext& context);

/// Makes those of a run. Throws std::invalid_argument with a sentence for options that contradict one another.
/// \param fit  of a run with an outer optimizer; else null
std::vector<std::unique_ptr<Exchange>> make_exchanges(const ExchangeContext& context, std::shared_ptr<LinkFit> fit);

}  // namespace cohive::train
