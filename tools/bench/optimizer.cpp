// Optimizer steps and passes over gradients, on one core and on all of them, beside a plain copy of memory: the same
// copy whose speed `cohive-bench codec` prints, made again with every round, as machines are not equally busy all the
// time; it also empties the caches. Gigabytes are what a step must read and write, at least, of each parameter.
#include <algorithm>
#include <random>

#include "bench/bench.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/optim/parallel.hpp"
#include "common/program.hpp"

namespace cohive::bench {
namespace {

using optim::DType, optim::Options, optim::View;

/// What every row works on.
struct Arrays {
  explicit Arrays(std::size_t count)
      : size(count), parameters(count), gradient(count), other(count), state(optim::kMostStateFields) {
    std::mt19937 random(7348);
    std::normal_distribution<float> normal;
    std::vector<float> some(65536);
    for (float& value : some) value = normal(random);
    for (std::size_t i = 0; i < count; ++i) {
      parameters[i] = some[i % some.size()];
      gradient[i] = some[i * 7 % some.size()];
    }
    for (auto& one : state) one.assign(count, 0.01f);
    copied_from.assign(kCopied, 1);
    copied_to.resize(kCopied);
  }

  View typed(std::vector<float>& memory, DType dtype) { return View(dtype, memory.data(), size); }

  static constexpr std::size_t kCopied = 16'000'000;
  std::size_t size;
  std::vector<float> parameters, gradient, other;
  std::vector<std::vector<float>> state;
  std::vector<float> copied_from, copied_to;
};

/// Something to measure: a step or pass of all arrays.
struct Row {
  std::string name;
  double bytes;  ///< of each parameter: read and written
  std::function<Task<void>(Runtime&)> work;
};

struct StepRow {
  const char* name;
  Options options;
  double bytes;
  DType gradient = DType::float32;
  bool elsewhere = false, bfloat16_copy = false, clear = false;
};

Task<void> make_step(Runtime& runtime, Arrays& arrays, StepRow row) {
  optim::TensorMemory memory{.parameters = std::span<const float>(arrays.parameters),
                             .result = std::span<float>(row.elsewhere ? arrays.other : arrays.parameters),
                             .gradient = arrays.typed(arrays.gradient, row.gradient)};
  if (row.bfloat16_copy) memory.copy = arrays.typed(arrays.other, DType::bfloat16);
  for (std::size_t i = 0; i < optim::state_fields(row.options).size(); ++i)
    memory.state[i] = std::span<float>(arrays.state[i]);
  auto steps = std::make_shared<std::vector<optim::TensorStep>>();
  steps->emplace_back(row.options, memory, optim::StepSettings{.step = 10, .clear_gradient = row.clear});
  co_await optim::run_steps(runtime, std::move(steps), nullptr);
}

std::vector<Row> step_rows(Arrays& arrays) {
  const std::vector<StepRow> steps = {
      {"adam", optim::AdamOptions{}, 28},
      {"adamw", optim::AdamWOptions{}, 28},
      {"adam_amsgrad", optim::AdamOptions{.amsgrad = true}, 36},
      {"sgd", optim::SgdOptions{}, 12},
      {"sgd_momentum", optim::SgdOptions{.momentum = 0.9}, 20},
      {"lamb", optim::LambOptions{}, 40},
      {"rmsprop", optim::RmspropOptions{}, 20},
      {"rmsprop_centered_momentum", optim::RmspropOptions{.momentum = 0.9, .centered = true}, 36},
      {"adagrad", optim::AdagradOptions{}, 20},
      {"adam_to_other_memory", optim::AdamOptions{}, 28, DType::float32, true},
      {"adam_bfloat16_copy", optim::AdamOptions{}, 30, DType::float32, false, true},
      {"adam_bfloat16_gradient", optim::AdamOptions{}, 26, DType::bfloat16},
      {"adam_float16_gradient", optim::AdamOptions{}, 26, DType::float16},
      {"adam_clearing", optim::AdamOptions{}, 32, DType::float32, false, false, true},
  };
  std::vector<Row> rows;
  for (const StepRow& step : steps)
    rows.push_back(
        {step.name, step.bytes, [&arrays, step](Runtime& runtime) { return make_step(runtime, arrays, step); }});
  return rows;
}

Task<void> ignore(Task<bool> task) {
  (void)co_await std::move(task);
}
Task<void> ignore(Task<double> task) {
  (void)co_await std::move(task);
}

Row accumulate_row(Arrays& arrays, std::string name, double bytes, DType dtype, optim::Accumulating how) {
  return {std::move(name), bytes, [&arrays, dtype, how](Runtime& runtime) {
            // Twice the memory for float64: half as many values, twice.
            const std::size_t count = dtype == DType::float64 ? arrays.size / 2 : arrays.size;
            const View gradient(dtype, arrays.gradient.data(), count);
            std::vector<optim::Addition> additions{{gradient, std::span(arrays.other).first(count)}};
            if (count < arrays.size) additions.push_back({gradient, std::span(arrays.other).last(count)});
            return ignore(optim::accumulate(runtime, std::move(additions), how, nullptr));
          }};
}

Row copy_row(Arrays& arrays, std::string name, double bytes, DType from, DType to) {
  return {std::move(name), bytes, [&arrays, from, to](Runtime& runtime) {
            return optim::copy(runtime, {{arrays.typed(arrays.gradient, from), arrays.typed(arrays.other, to)}},
                               nullptr);
          }};
}

std::vector<Row> pass_rows(Arrays& arrays) {
  std::vector<Row> rows;
  const optim::Accumulating add{.factor = 1e-30}, first{.factor = 0.5, .first = true};
  rows.push_back(accumulate_row(arrays, "accumulate", 12, DType::float32, add));
  rows.push_back(accumulate_row(arrays, "accumulate_bfloat16", 10, DType::bfloat16, add));
  rows.push_back(accumulate_row(arrays, "accumulate_float16", 10, DType::float16, add));
  rows.push_back(accumulate_row(arrays, "accumulate_float64", 16, DType::float64, add));
  rows.push_back(accumulate_row(arrays, "accumulate_first", 8, DType::float32, first));
  rows.push_back({"scale", 8, [&arrays](Runtime& runtime) {
                    return ignore(optim::scale(runtime, {std::span(arrays.parameters)}, 1, nullptr));
                  }});
  rows.push_back({"all_finite", 4, [&arrays](Runtime& runtime) {
                    return ignore(optim::all_finite(runtime, {std::span<const float>(arrays.parameters)}, nullptr));
                  }});
  rows.push_back({"square_sum", 4, [&arrays](Runtime& runtime) {
                    return ignore(optim::square_sum(runtime, {std::span<const float>(arrays.parameters)}, nullptr));
                  }});
  rows.push_back(copy_row(arrays, "to_float16", 6, DType::float32, DType::float16));
  rows.push_back(copy_row(arrays, "from_float16", 6, DType::float16, DType::float32));
  rows.push_back(copy_row(arrays, "to_bfloat16", 6, DType::float32, DType::bfloat16));
  rows.push_back(copy_row(arrays, "from_bfloat16", 6, DType::bfloat16, DType::float32));
  rows.push_back(accumulate_row(arrays, "accumulate_and_clear", 16, DType::float32, {.factor = 1e-30, .clear = true}));
  return rows;
}

double seconds_of(const std::function<void()>& work) {
  const double start = now_seconds();
  work();
  return now_seconds() - start;
}

/// The fastest of the rounds that `seconds` has room for, each of a copy and the work one after the other.
nlohmann::json measure(Runtime& runtime, Arrays& arrays, const Row& row, double seconds) {
  double copy = 1e9, one = 1e9, all = 1e9;
  SimRuntime in_place;  // one core: this thread
  in_place.run(row.work(in_place));
  const double end = now_seconds() + seconds;
  do {
    copy = std::min(copy, seconds_of([&] { std::ranges::copy(arrays.copied_from, arrays.copied_to.begin()); }));
    one = std::min(one, seconds_of([&] { in_place.run(row.work(in_place)); }));
    all = std::min(all, seconds_of([&] { runtime.run(row.work(runtime)); }));
  } while (now_seconds() < end);
  const double gigabytes = row.bytes * static_cast<double>(arrays.size) / 1e9;
  const double bandwidth = 2 * sizeof(float) * static_cast<double>(Arrays::kCopied) / copy / 1e9;
  return {{"bytes_per_parameter", row.bytes},
          {"memory_bandwidth", bandwidth},
          {"one_core", gigabytes / one},
          {"one_core_ms", 1000 * one},
          {"all_cores", gigabytes / all},
          {"all_cores_ms", 1000 * all},
          {"share_of_memory_bandwidth", gigabytes / one / bandwidth}};
}

}  // namespace

nlohmann::json optimizer(const Settings& settings) {
  Arrays arrays(settings.parameters * 1'000'000);
  const std::pair<const char*, std::vector<Row>> kinds[] = {{"steps", step_rows(arrays)},
                                                            {"passes", pass_rows(arrays)}};
  const auto wanted = [&](const Row& row) {
    return settings.only.empty() || std::ranges::find(settings.only, row.name) != settings.only.end();
  };
  for (const std::string& name : settings.only)
    if (std::ranges::none_of(kinds,
                             [&](const auto& kind) { return std::ranges::count(kind.second, name, &Row::name); }))
      throw tools::Exit{tools::kBadInput, "--only: no step or pass is called " + name};
  const auto runtime = make_runtime();
  nlohmann::json result{{"benchmark", "optimizer"}, {"millions_of_parameters", settings.parameters}, {"unit", "GB/s"}};
  for (const auto& [kind, rows] : kinds)
    for (const Row& row : rows)
      if (wanted(row)) result[kind][row.name] = measure(*runtime, arrays, row, settings.seconds);
  return result;
}

}  // namespace cohive::bench
