#include "trainer_options.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cohive/core/log.hpp"
#include "cohive/core/msgpack.hpp"
#include "cohive/train/power_sgd_averager.hpp"
#include "errors.hpp"
#include "options.hpp"
#include "tensors.hpp"

namespace cohive::c {
namespace {

using nlohmann::json;

constexpr std::size_t kMostGpus = 1024;
constexpr std::size_t kMostRounds = 1'000'000'000;  // between two of something

/// One codec for all tensors, or one for each. Returns whether there are any.
bool read_codecs(OptionReader& reader, const char* name, std::size_t tensors, codec::Compression& compression) {
  std::vector<std::string> names;
  if (!reader.read(name, names)) return false;
  if (names.size() != 1 && names.size() != tensors)
    refuse(std::string(name) + " has one codec, or one for each tensor");
  std::vector<codec::Compression> codecs;
  for (const auto& one : names) {
    cohive_tensor named{};
    named.codec = one.c_str();
    codecs.emplace_back(codec_of(named));
  }
  compression = codecs.size() == 1 ? codecs[0] : codec::Compression::per_tensor(std::move(codecs));
  return true;
}

void read_times(OptionReader& reader, train::RunOptions& run) {
  reader.read("matchmaking_time", run.matchmaking_time);
  reader.read("averaging_timeout", run.averaging_timeout);
  reader.read("load_state_timeout", run.load_state_timeout);
  reader.read("shutdown_timeout", run.shutdown_timeout);
  Duration time{};
  if (reader.read("allreduce_timeout", time)) run.allreduce_timeout = time;
  if (reader.read("next_chunk_timeout", time)) run.next_chunk_timeout = time;
}

void read_ways(OptionReader& reader, TrainerOptions& options) {
  auto& run = options.run;
  reader.read("delay_state_averaging", run.delay_state_averaging);
  reader.read("delay_optimizer_step", run.delay_optimizer_step);
  reader.read("delay_grad_averaging", run.delay_grad_averaging);
  reader.read("reuse_grad_buffers", run.reuse_grad_buffers);
  reader.read("use_local_updates", run.use_local_updates);
  reader.read("auxiliary", run.auxiliary);
  reader.read("client_mode", run.client_mode);
  reader.read("share_state", run.share_state);
  reader.read("native_steps", options.ways.native_steps);
  options.ways.reuse_buffers = run.reuse_grad_buffers;
  options.ways.local_steps = run.use_local_updates;
  if (run.delay_optimizer_step && !options.ways.native_steps)
    refuse("delay_optimizer_step needs native_steps: a step of the caller's changes the live parameters");
}

averaging::Aggregation aggregation_of(const std::string& name, std::optional<double> clip) {
  if (name == "mean-of-senders") return averaging::MeanOfSenders{clip.value_or(0)};
  if (name == "clipped-mean") return averaging::ClippedMean{clip.value_or(averaging::ClippedMean().factor)};
  if (name != "mean") refuse("outer_aggregation is \"mean\", \"mean-of-senders\" or \"clipped-mean\"");
  if (clip)
    refuse("outer_clip_factor goes with an outer_aggregation that clips: \"clipped-mean\" or \"mean-of-senders\"");
  return averaging::Mean();
}

/// How differences travel, and what a reducer makes of them. Returns whether a codec was chosen.
bool read_outer_codec(OptionReader& reader, train::RunOptions& run) {
  std::string codec;
  const bool given = reader.read("outer_codec", codec);
  std::string aggregation = codec == "sparse2" ? "mean-of-senders" : "mean";
  const bool how = reader.read("outer_aggregation", aggregation);
  double clip = 0;
  const bool clips = reader.read("outer_clip_factor", clip);
  if ((given || how || clips) && !run.outer_optimizer)
    refuse("outer_codec, outer_aggregation and outer_clip_factor go with outer_lr: set it, too");
  if (given && codec != "block4" && codec != "sparse2") refuse("outer_codec is \"block4\" or \"sparse2\"");
  if (given) run.agreed_grad_compression = *codec::codec_from_name(codec);
  run.grad_aggregation = aggregation_of(aggregation, clips ? std::optional(clip) : std::nullopt);
  return given;
}

/// Returns whether a momentum was chosen.
bool read_outer_optimizer(OptionReader& reader, train::RunOptions& run) {
  train::OuterOptimizer outer;
  std::size_t every = 1, parts = 1;
  const bool wanted = reader.read("outer_lr", outer.lr);
  const bool momentum = reader.read("outer_momentum", outer.momentum);
  const bool nesterov = reader.read("outer_nesterov", outer.nesterov);
  const bool repair = reader.read("outer_repair_every", every, 1);
  const bool fragments = reader.read("outer_fragments", parts, 1);
  const bool kind = reader.read("open_diloco", outer.open_diloco);
  if (!wanted && (momentum || nesterov || repair || fragments || kind))
    refuse(
        "outer_momentum, outer_nesterov, outer_fragments, outer_repair_every and open_diloco go with outer_lr: set it, "
        "too");
  if (every > kMostRounds) refuse("outer_repair_every must be at most 10^9");
  if (repair) outer.repair_every = static_cast<int>(every);
  if (fragments) outer.fragments = static_cast<int>(std::min(parts, kMostRounds));  // run_options.cpp has the limit
  if (wanted) run.outer_optimizer = outer;
  return momentum;
}

void read_tracker(OptionReader& reader, train::TrackerOptions& tracker) {
  reader.read("min_refresh_period", tracker.min_refresh_period);
  reader.read("max_refresh_period", tracker.max_refresh_period);
  reader.read("default_refresh_period", tracker.default_refresh_period);
  reader.read("metadata_expiration", tracker.metadata_expiration);
  reader.read("sharded_above", tracker.sharded_above);
  reader.read("expected_drift_peers", tracker.expected_drift_peers);
  reader.read("expected_drift_rate", tracker.expected_drift_rate);
  if (tracker.min_refresh_period <= 0s || tracker.max_refresh_period < tracker.min_refresh_period)
    refuse("refresh periods must be above 0, and the longest one not below the shortest");
  if (tracker.default_refresh_period <= 0s || tracker.metadata_expiration <= 0s)
    refuse("default_refresh_period and metadata_expiration must be above 0");
}

/// hivemind gives them to its averager of the state alone.
void read_averager(OptionReader& reader, train::RunOptions& run) {
  std::optional<Duration> request, sender, reducer;
  std::optional<std::size_t> part, members, vector;
  const auto optional = [&reader](const char* name, auto& value, auto... least) {
    typename std::remove_reference_t<decltype(value)>::value_type read{};
    if (reader.read(name, read, least...)) value = read;
  };
  optional("request_timeout", request);
  optional("sender_timeout", sender);
  optional("reducer_timeout", reducer);
  optional("part_size_bytes", part, std::size_t{1});
  optional("min_group_size", members, std::size_t{2});
  optional("min_vector_size", vector);
  run.averager_options = [=](averaging::AveragerOptions& averager) {
    if (request) averager.request_timeout = *request;
    if (sender) averager.sender_timeout = *sender;
    if (reducer) averager.reducer_timeout = *reducer;
    if (part) averager.part_size_bytes = *part;
    if (members) averager.min_group_size = *members;
    if (vector) averager.min_vector_size = *vector;
  };
}

void read_checkpoints(OptionReader& reader, train::CheckpointOptions& checkpoints) {
  reader.read("checkpoint_dir", checkpoints.directory);
  reader.read("checkpoint_every", checkpoints.every);
  reader.read("checkpoint_keep", checkpoints.keep, 1);
  reader.read("resume", checkpoints.resume);
}

// ---- Steps

void take(const json& group, const char* name, double& value) {
  const auto found = group.find(name);
  if (found == group.end()) return;
  if (!found->is_number() || !std::isfinite(found->get<double>()))
    refuse(std::string(name) + " of a parameter group must be a finite number");
  value = found->get<double>();
}

void take(const json& group, const char* name, bool& value) {
  const auto found = group.find(name);
  if (found == group.end()) return;
  if (!found->is_boolean()) refuse(std::string(name) + " of a parameter group must be true or false");
  value = found->get<bool>();
}

template <class Options>
void take_betas(const json& group, Options& options) {
  const auto found = group.find("betas");
  if (found == group.end()) return;
  if (!found->is_array() || found->size() != 2 || !(*found)[0].is_number() || !(*found)[1].is_number())
    refuse("betas of a parameter group must be two numbers");
  options.beta1 = (*found)[0];
  options.beta2 = (*found)[1];
}

/// The settings that an optimizer has.
template <class Options>
optim::Options settings_of(const json& group) {
  Options options;
  take(group, "lr", options.lr);
  take(group, "weight_decay", options.weight_decay);
  if constexpr (requires { options.beta1; }) take_betas(group, options);
  if constexpr (requires { options.eps; }) take(group, "eps", options.eps);
  if constexpr (requires { options.amsgrad; }) take(group, "amsgrad", options.amsgrad);
  if constexpr (requires { options.momentum; }) take(group, "momentum", options.momentum);
  if constexpr (requires { options.dampening; }) take(group, "dampening", options.dampening);
  if constexpr (requires { options.nesterov; }) take(group, "nesterov", options.nesterov);
  if constexpr (requires { options.alpha; }) take(group, "alpha", options.alpha);
  if constexpr (requires { options.centered; }) take(group, "centered", options.centered);
  if constexpr (requires { options.lr_decay; }) take(group, "lr_decay", options.lr_decay);
  if constexpr (requires { options.initial_accumulator_value; })
    take(group, "initial_accumulator_value", options.initial_accumulator_value);
  return options;
}

optim::Options step_of(const json& group) {
  const auto name = group.is_object() ? group.value("name", json()) : json();
  if (name == "sgd") return settings_of<optim::SgdOptions>(group);
  if (name == "adam") return settings_of<optim::AdamOptions>(group);
  if (name == "adamw") return settings_of<optim::AdamWOptions>(group);
  if (name == "rmsprop") return settings_of<optim::RmspropOptions>(group);
  if (name == "adagrad") return settings_of<optim::AdagradOptions>(group);
  if (name == "lamb") return settings_of<optim::LambOptions>(group);
  refuse("a parameter group has a \"name\": \"sgd\", \"adam\", \"adamw\", \"rmsprop\", \"adagrad\" or \"lamb\"");
}

/// One for each parameter.
std::vector<optim::Options> steps_of(const char* text, std::size_t parameters) {
  const auto groups = json::parse(text, nullptr, false);
  if (!groups.is_array()) refuse("steps must be a JSON array");
  std::vector<optim::Options> steps;
  for (const auto& group : groups) {
    const auto options = step_of(group);
    const auto count = group.value("parameters", json());
    if (!count.is_number_unsigned() || count.get<std::size_t>() > parameters - steps.size())
      refuse("\"parameters\" of a parameter group is how many of the model's it has");
    steps.insert(steps.end(), count.get<std::size_t>(), options);
  }
  if (steps.size() != parameters) refuse("the parameter groups have fewer parameters than the model");
  return steps;
}

train::BufferTensor buffer_of(const cohive_tensor& tensor, const std::string& name) {
  train::BufferTensor buffer{.name = name, .data = const_cast<void*>(tensor.data)};
  for (const auto size : shape_of(tensor)) buffer.shape.push_back(size);
  return buffer;
}

void check_size(const cohive_tensor& tensor, std::size_t of_a_value, const std::string& what) {
  if (tensor.size != *codec::element_count(shape_of(tensor)) * of_a_value)
    refuse(what + " has another size than its shape says");
}

}  // namespace

TrainerOptions read_trainer_options(const char* text, std::size_t parameters, std::size_t beside) {
  OptionReader reader(text);
  TrainerOptions options;
  auto& run = options.run;
  if (!reader.read("run_id", run.run_id)) refuse("run_id is missing: the name of the training run");
  std::size_t target = 0;
  bool fits = false;
  reader.read("fit_my_link", fits);
  const bool given = reader.read("target_batch_size", target, 1);
  if (!given && !fits) refuse("target_batch_size is missing: samples per epoch");
  if (target > std::size_t{1} << 62) refuse("target_batch_size must be at most 2^62");
  if (given) run.target_batch_size = static_cast<std::int64_t>(target);
  run.fit_target_batch_size = fits && !given;
  read_times(reader, run);
  read_ways(reader, options);
  const bool momentum = read_outer_optimizer(reader, run);
  const bool outer_codec = read_outer_codec(reader, run);
  if (run.outer_optimizer && !momentum && run.agreed_grad_compression &&
      codec::uses(*run.agreed_grad_compression, codec::Codec::sparse2))
    run.outer_optimizer->momentum = 0;
  read_tracker(reader, run.tracker_options);
  read_averager(reader, run);
  read_checkpoints(reader, run.checkpoints);
  std::size_t every = 1;
  if (reader.read("average_state_every", every, 1)) {
    if (every > kMostRounds) refuse("average_state_every must be at most 10^9");
    run.average_state_every = static_cast<int>(every);
  }
  if (reader.read("full_state_every", every)) {
    if (every > kMostRounds) refuse("full_state_every must be at most 10^9");
    run.full_state_every = static_cast<int>(every);
  }
  reader.read("performance_ema_alpha", run.performance_ema_alpha);
  reader.read("verbose", run.verbose);
  reader.read("share_loss", run.share_loss);
  reader.read("target_group_size", run.target_group_size);
  reader.read("verified_share", run.verified_share);
  double number = 0;
  if (reader.read("bandwidth", number)) run.bandwidth = number;
  if (reader.read("clip_grad_norm", number)) options.clip_grad_norm = number;
  if (options.clip_grad_norm && run.use_local_updates)
    refuse(
        "clip_grad_norm is about averaged gradients, and with use_local_updates none are: clip those of each batch "
        "before you step");
  std::size_t device = 0;
  if (reader.read("device", device)) {
    if (device > kMostGpus) refuse("device is the number of a GPU");
    if (!options.ways.native_steps || run.reuse_grad_buffers)
      refuse("device goes with native_steps, and without reuse_grad_buffers");
    options.device = static_cast<int>(device);
  }
  averaging::PowerSgdOptions factors;
  const bool low_rank = reader.read("averager_rank", factors.averager_rank, 1);
  if (reader.read("min_compression_ratio", factors.min_compression_ratio) && !low_rank)
    refuse("min_compression_ratio goes with averager_rank: set it, too");
  if (low_rank && run.use_local_updates)
    refuse("averager_rank is about averaged gradients, and with use_local_updates none are: leave it out");
  if (low_rank) run.grad_averager_factory = train::power_sgd_averager(factors);
  const bool chosen = read_codecs(reader, "grad_codecs", parameters, run.grad_compression) || outer_codec;
  run.fit_compression = fits && !chosen;
  if (fits && !run.fit_target_batch_size && !run.fit_compression)
    refuse("fit_my_link has nothing to fit: leave target_batch_size, or grad_codecs and outer_codec, out");
  read_codecs(reader, "state_codecs", parameters + beside, run.state_averaging_compression);
  run.load_state_compression = by_codec_name();
  reader.finish();
  train::check(run);
  return options;
}

CallerArrays read_arrays(const cohive_tensor* parameters, std::size_t count, const cohive_tensor* beside,
                         std::size_t beside_count) {
  if (count == 0) refuse("a model has at least one parameter");
  there(parameters, "parameters");
  CallerArrays arrays;
  for (std::size_t i = 0; i < count; ++i) {
    check_size(parameters[i], sizeof(float), "parameter " + std::to_string(i));
    if (dtype_of(parameters[i]) != codec::DType::float32) refuse("a parameter has values of float32");
    arrays.parameters.push_back(buffer_of(parameters[i], std::to_string(i)));
  }
  if (beside_count > 0) there(beside, "beside");
  for (std::size_t k = 0; k < beside_count; ++k) {
    const std::string name = "what is averaged beside the parameters, " + std::to_string(k) + ",";
    check_size(beside[k], sizeof(float), name);
    CallerArrays::Beside one;
    if (const std::string_view codec = beside[k].codec ? beside[k].codec : ""; Layout::is_statistic(codec))
      one.statistic = codec;
    one.values = train::values_of(buffer_of(beside[k], std::to_string(k)), name);
    one.info.shape = shape_of(beside[k]);
    one.info.dtype = dtype_of(beside[k]);
    one.info.requires_grad = beside[k].requires_grad != 0;
    one.info.role = one.statistic.empty() ? codec::Role::unspecified : codec::Role::optimizer;
    arrays.beside.push_back(std::move(one));
  }
  return arrays;
}

Layout read_layout(const std::vector<const void*>& parameters, ByteView metadata, const cohive_tensor* state,
                   const char* const* names, std::size_t count, const char* steps, float* const* statistics) {
  Layout layout;
  const auto decoded = msgpack::decode(metadata);
  const auto* map = decoded ? decoded->get_if<msgpack::Map>() : nullptr;
  if (!map) refuse("metadata must be msgpack of a map");
  layout.metadata = *map;
  if (count > 0) {
    there(state, "state");
    there(names, "names");
  }
  for (std::size_t k = 0; k < count; ++k) {
    Layout::Part part;
    part.described = {dtype_of(state[k]), shape_of(state[k]), state[k].requires_grad != 0, {}};
    check_size(state[k], codec::size_of(part.described.dtype), "tensor " + std::to_string(k) + " of the state");
    part.data = static_cast<const std::uint8_t*>(state[k].data);
    part.size = state[k].size;
    part.on_gpu = state[k].on_gpu != 0;
    if (part.size > 0 && !part.data) refuse("data must not be null");
    const auto found = std::ranges::find(parameters, state[k].data);
    if (found != parameters.end() && part.size > 0)
      part.parameter = static_cast<std::size_t>(found - parameters.begin());
    part.name = &there(names[k], "a name");
    part.codec = codec::info(codec_of(state[k])).name;
    layout.parts.push_back(std::move(part));
  }
  if (!steps) return layout;
  layout.step = steps_of(steps, parameters.size());
  there(statistics, "statistics");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto& own = layout.statistics.emplace_back();
    std::copy_n(statistics + i * own.size(), own.size(), own.begin());
  }
  return layout;
}

}  // namespace cohive::c
