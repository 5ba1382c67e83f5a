#include "cohive/optim/options.hpp"

#include <stdexcept>
#include <string>

namespace cohive::optim {
namespace {

void demand(bool fine, const std::string& sentence) {
  if (!fine) throw std::invalid_argument(sentence);
}
void not_negative(double value, const char* name) {
  demand(value >= 0, std::string(name) + " must be 0 or more, not " + std::to_string(value));
}
void below_one(double value, const char* name) {
  demand(value >= 0 && value < 1,
         std::string(name) + " must be at least 0 and less than 1, not " + std::to_string(value));
}

void check_one(const SgdOptions& o) {
  not_negative(o.lr, "lr");
  not_negative(o.momentum, "momentum");
  not_negative(o.weight_decay, "weight_decay");
  demand(!o.nesterov || (o.momentum > 0 && o.dampening == 0), "nesterov needs a momentum and no dampening");
}
template <class Moments>  // Adam, AdamW, LAMB
void check_moments(const Moments& o) {
  not_negative(o.lr, "lr");
  below_one(o.beta1, "beta1");
  below_one(o.beta2, "beta2");
  not_negative(o.eps, "eps");
  not_negative(o.weight_decay, "weight_decay");
}
void check_one(const AdamOptions& o) {
  check_moments(o);
}
void check_one(const AdamWOptions& o) {
  check_moments(o);
}
void check_one(const RmspropOptions& o) {
  not_negative(o.lr, "lr");
  not_negative(o.alpha, "alpha");
  not_negative(o.eps, "eps");
  not_negative(o.weight_decay, "weight_decay");
  not_negative(o.momentum, "momentum");
}
void check_one(const AdagradOptions& o) {
  not_negative(o.lr, "lr");
  not_negative(o.lr_decay, "lr_decay");
  not_negative(o.weight_decay, "weight_decay");
  not_negative(o.initial_accumulator_value, "initial_accumulator_value");
  not_negative(o.eps, "eps");
}
void check_one(const LambOptions& o) {
  check_moments(o);
  not_negative(o.smallest_norm, "smallest_norm");
  not_negative(o.largest_norm, "largest_norm");
  demand(o.largest_norm == 0 || o.smallest_norm <= o.largest_norm, "smallest_norm must not exceed largest_norm");
}

using Fields = std::vector<StateField>;

Fields fields_of(const SgdOptions& o) {
  return o.momentum == 0 ? Fields{} : Fields{{"momentum_buffer"}};
}
Fields adam_fields(bool amsgrad) {
  Fields fields{{"exp_avg"}, {"exp_avg_sq"}};
  if (amsgrad) fields.push_back({"max_exp_avg_sq"});
  return fields;
}
Fields fields_of(const AdamOptions& o) {
  return adam_fields(o.amsgrad);
}
Fields fields_of(const AdamWOptions& o) {
  return adam_fields(o.amsgrad);
}
Fields fields_of(const RmspropOptions& o) {
  Fields fields{{"square_avg"}};
  if (o.momentum > 0) fields.push_back({"momentum_buffer"});
  if (o.centered) fields.push_back({"grad_avg"});
  return fields;
}
Fields fields_of(const AdagradOptions& o) {
  return {{"sum", o.initial_accumulator_value}};
}
Fields fields_of(const LambOptions&) {
  return adam_fields(false);
}

}  // namespace

std::vector<StateField> state_fields(const Options& options) {
  return std::visit([](const auto& o) { return fields_of(o); }, options);
}

void check(const Options& options) {
  std::visit([](const auto& o) { check_one(o); }, options);
}

}  // namespace cohive::optim
