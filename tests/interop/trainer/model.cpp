#include "model.hpp"

#include "cohive/torch/schedules.hpp"
#include "torch/known_optimizer.hpp"

namespace {

namespace to = torch::optim;

constexpr double kRate = 0.1, kRateOfBias = 0.05;

template <class Optimizer, class Options>
std::unique_ptr<to::Optimizer> make(std::vector<torch::Tensor> parameters, std::size_t groups, Options options) {
  if (groups == 1) return std::make_unique<Optimizer>(std::move(parameters), options);
  std::vector<to::OptimizerParamGroup> list;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto own = std::make_unique<Options>(options);
    if (i > 0) own->lr(kRateOfBias);
    list.emplace_back(std::vector<torch::Tensor>{parameters[i]}, std::move(own));
  }
  return std::make_unique<Optimizer>(std::move(list), options);
}

std::unique_ptr<to::Optimizer> make_optimizer(const std::string& name, std::vector<torch::Tensor> of,
                                              std::size_t groups) {
  if (name == "sgd") return make<to::SGD>(std::move(of), groups, to::SGDOptions(kRate).momentum(0.9));
  if (name == "sgd-plain") return make<to::SGD>(std::move(of), groups, to::SGDOptions(kRate));
  if (name == "adam") return make<to::Adam>(std::move(of), groups, to::AdamOptions(kRate));
  if (name == "amsgrad") return make<to::Adam>(std::move(of), groups, to::AdamOptions(kRate).amsgrad(true));
  if (name == "adamw") return make<to::AdamW>(std::move(of), groups, to::AdamWOptions(kRate));
  if (name == "rmsprop") return make<to::RMSprop>(std::move(of), groups, to::RMSpropOptions(kRate));
  if (name == "rmsprop-centered")
    return make<to::RMSprop>(std::move(of), groups, to::RMSpropOptions(kRate).momentum(0.9).centered(true));
  if (name == "adagrad") return make<to::Adagrad>(std::move(of), groups, to::AdagradOptions(kRate));
  throw std::invalid_argument("no algorithm: " + name);
}

cohive::SchedulerFn make_scheduler(const std::string& name) {
  if (name.empty()) return nullptr;
  if (name == "half") return cohive::schedule(cohive::exponential(0.5));
  if (name == "one-cycle") return cohive::schedule(cohive::one_cycle(10));
  if (name == "step") return [](to::Optimizer& of) { return std::make_unique<to::StepLR>(of, 2, 0.5); };
  throw std::invalid_argument("no schedule: " + name);
}

}  // namespace

std::vector<double> values_of(const torch::Tensor& tensor) {
  const auto flat = tensor.detach().to(torch::kFloat64).flatten().contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

TestModel::TestModel(const nlohmann::json& of) {
  const auto text = [&](const char* key) { return of.value(key, std::string()); };
  const std::string frozen = text("frozen");
  freezes_later = frozen == "middle";
  weight = torch::zeros({3, 2}).requires_grad_();
  bias = torch::full({2}, frozen.empty() ? 0.0 : 0.5).requires_grad_(frozen != "before");
  optimizer = make_optimizer(of.value("algorithm", "sgd"), {weight, bias}, of.value("groups", std::size_t{1}));
  scheduler = make_scheduler(text("schedule"));
  if (of.contains("python_scheduler")) python.scheduler = of.at("python_scheduler").get<bool>();
  python.torch = text("python_torch");
}

void TestModel::backward(double gradient, std::uint64_t epoch) {
  if (freezes_later && epoch > 0) bias.set_requires_grad(false);
  (weight.sum() * gradient + bias.sum() * 2 * gradient).backward();
}

nlohmann::json TestModel::state() const {
  nlohmann::json kept = nlohmann::json::object(), rates = nlohmann::json::array();
  for (auto& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
  std::size_t number = 0;
  for (const auto& parameter : {weight, bias}) {
    for (const auto& [name, value] : cohive::libtorch::statistics_of(*optimizer, parameter))
      kept[std::to_string(number) + "." + name] = values_of(value);
    ++number;
  }
  return {{"weight", values_of(weight)}, {"bias", values_of(bias)}, {"rates", rates}, {"statistics", kept}};
}
