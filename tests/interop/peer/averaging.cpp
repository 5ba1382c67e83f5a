// One averager over float32 tensors, plain or with PowerSGD. Tensors travel as {"shape", "data"}: the data as
// hexadecimal, little-endian; gathered data and metadata as the hexadecimal of their msgpack.
#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/power_sgd.hpp"
#include "cohive/averaging/state_sharing.hpp"

#include <cstring>

#include "peer.hpp"

namespace cohive::interop {

using nlohmann::json;

struct AveragingPeer {
  std::vector<std::vector<float>> values;
  std::vector<codec::Shape> shapes;
  std::vector<codec::Tensor> shared;
  std::unique_ptr<averaging::PowerSgd> power_sgd;
  std::unique_ptr<averaging::Averager> averager;
  std::unique_ptr<averaging::StateSharing> sharing;
};

namespace {

AveragingPeer& averaging_of(Peer& peer) {
  if (!peer.averaging_) throw std::logic_error("call averager_start first");
  return *peer.averaging_;
}

void fill(std::vector<float>& out, const json& tensor) {
  const Bytes data = bytes_of(tensor.at("data"));
  if (data.size() % sizeof(float) != 0) throw std::invalid_argument("not float32 values");
  out.resize(data.size() / sizeof(float));
  if (!data.empty()) std::memcpy(out.data(), data.data(), data.size());
}

std::string hex_of_values(std::span<const float> values) {
  return to_hex(ByteView(reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()));
}

averaging::AveragerOptions options_of(const json& request) {
  averaging::AveragerOptions options;
  options.prefix = request.at("prefix");
  options.target_group_size = request.value("target_group_size", 0);
  options.initial_group_bits = request.value("initial_group_bits", "");
  options.min_matchmaking_time = from_seconds(request.value("min_matchmaking_time", 5.0));
  options.request_timeout = from_seconds(request.value("request_timeout", 3.0));
  options.sender_timeout = from_seconds(request.value("sender_timeout", to_seconds(options.sender_timeout)));
  options.reducer_timeout = from_seconds(request.value("reducer_timeout", to_seconds(options.reducer_timeout)));
  options.part_size_bytes = request.value("part_size_bytes", options.part_size_bytes);
  options.codec = static_cast<codec::Codec>(request.value("codec", 0));
  if (request.contains("size_adaptive")) {  // threshold, codec of smaller tensors, codec of the others
    const auto& rule = request["size_adaptive"];
    options.codec = codec::Compression::size_adaptive(rule.at(0), static_cast<codec::Codec>(rule.at(1).get<int>()),
                                                      static_cast<codec::Codec>(rule.at(2).get<int>()));
  }
  options.one_average = true;  // which no group with a Python peer has
  if (request.contains("agreed_codec"))
    options.agreed_codec = static_cast<codec::Codec>(request["agreed_codec"].get<int>());
  if (request.contains("trimmed")) options.aggregation = averaging::TrimmedMean{request["trimmed"].get<double>()};
  options.mode = static_cast<averaging::PeerMode>(request.value("mode", 0));
  if (request.contains("bandwidth")) options.bandwidth = request["bandwidth"].get<double>();
  return options;
}

/// averager_rank, min_compression_ratio
void use_power_sgd(AveragingPeer& state, const json& request, averaging::AveragerOptions& options) {
  std::vector<averaging::TensorInfo> schema;
  for (const auto& shape : state.shapes) schema.push_back({shape});
  const averaging::PowerSgdOptions chosen{request.at("averager_rank").get<std::size_t>(),
                                          request.value("min_compression_ratio", 0.5)};
  state.power_sgd = std::make_unique<averaging::PowerSgd>(schema, chosen);
  options.class_name = "PowerSGDGradientAverager";
  options.scheme = state.power_sgd->scheme();
}

/// tensors, prefix, and what options_of reads; averager_rank: PowerSGD, whose factors are the state that is shared
Task<json> averager_start(Peer& peer, json request) {
  auto state = std::make_shared<AveragingPeer>();
  for (const auto& tensor : request.at("tensors")) {
    state->shapes.push_back(tensor.at("shape").get<codec::Shape>());
    fill(state->values.emplace_back(), tensor);
  }
  std::vector<averaging::AveragedTensor> averaged;
  for (std::size_t i = 0; i < state->values.size(); ++i) averaged.push_back({state->values[i], state->shapes[i]});
  auto options = options_of(request);
  if (request.contains("averager_rank")) use_power_sgd(*state, request, options);
  state->averager = std::make_unique<averaging::Averager>(peer.dht(), averaged, std::move(options));
  state->averager->start();
  averaging::StateSharingOptions sharing;
  sharing.prefix = state->averager->options().prefix;
  sharing.class_name = state->averager->options().class_name;
  sharing.codec = static_cast<codec::Codec>(request.value("state_codec", 0));
  sharing.share = state->averager->options().mode == averaging::PeerMode::node;
  state->sharing = std::make_unique<averaging::StateSharing>(peer.dht(), std::move(sharing));
  state->sharing->start();
  if (state->power_sgd) state->sharing->set_provider(state->power_sgd->provider(state->averager->group_bits()));
  peer.averaging_ = std::move(state);
  co_return json();
}

/// weight, gather, timeout, scheduled_in (seconds from now), allow_retries
Task<json> averager_step(Peer& peer, json request) {
  const auto state = peer.averaging_;
  averaging::RoundOptions options;
  options.timeout = from_seconds(request.value("timeout", 30.0));
  options.allow_retries = request.value("allow_retries", true);
  if (request.contains("gather")) options.gather = value_from(request["gather"]);
  if (request.contains("scheduled_in"))
    options.scheduled_time = peer.dht().now() + request["scheduled_in"].get<double>();
  const auto result = value_of(co_await averaging_of(peer).averager->step(options, request.value("weight", 1.0)));
  json group = json::array();
  for (const auto& member : result.group)
    group.push_back(
        {{"peer", member.peer.text()}, {"mode", static_cast<int>(member.mode)}, {"data", hex_of(member.data)}});
  co_return json{{"group", group},
                 {"leader", result.leader.text()},
                 {"agreed_codecs", result.agreed_codecs.text()},
                 {"parts_total", result.parts_total},
                 {"parts_failed", result.parts_failed}};
}

/// The averaged tensors; tensors (optional): new values to set first
Task<json> averager_tensors(Peer& peer, json request) {
  AveragingPeer& state = averaging_of(peer);
  if (request.contains("tensors"))
    for (std::size_t i = 0; i < state.values.size(); ++i) fill(state.values[i], request["tensors"].at(i));
  json tensors = json::array();
  for (std::size_t i = 0; i < state.values.size(); ++i)
    tensors.push_back({{"shape", state.shapes[i]}, {"data", hex_of_values(state.values[i])}});
  co_return tensors;
}

/// metadata, priority, tensors (with dtype): what peers that ask are given from now on
Task<json> averager_share(Peer& peer, json request) {
  averaging::SharedState shared{value_from(request.at("metadata")), {}};
  for (const auto& tensor : request.at("tensors")) {
    const auto dtype = codec::dtype_from_name(tensor.at("dtype").get<std::string>());
    if (!dtype) throw std::invalid_argument("unknown dtype");
    shared.tensors.push_back({*dtype, tensor.at("shape").get<codec::Shape>(), tensor.value("requires_grad", false),
                              Slice::copy_of(bytes_of(tensor.at("data")))});
  }
  auto& sharing = *averaging_of(peer).sharing;
  sharing.set_provider([shared]() -> std::optional<averaging::SharedState> { return shared; });
  sharing.set_priority(request.value("priority", 0.0));
  co_return json();
}

/// timeout
Task<json> averager_download(Peer& peer, json request) {
  const auto state =
      value_of(co_await averaging_of(peer).sharing->download({.limit = from_seconds(request.value("timeout", 30.0))}));
  json tensors = json::array();
  for (const auto& tensor : state.tensors) {
    tensors.push_back({{"dtype", codec::name_of(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"requires_grad", tensor.requires_grad},
                       {"data", to_hex(tensor.data.view())}});
  }
  co_return json{{"donor", state.donor.text()}, {"metadata", hex_of(state.metadata)}, {"tensors", tensors}};
}

/// timeout: takes the factors of another member
Task<json> averager_load_factors(Peer& peer, json request) {
  auto& averaging = averaging_of(peer);
  auto state = value_of(co_await averaging.sharing->download({.limit = from_seconds(request.value("timeout", 30.0))}));
  value_of(co_await averaging.power_sgd->load(peer.runtime, std::move(state)));
  co_return json();
}

/// tensor: what PowerSGD owes of it
Task<json> averager_residual(Peer& peer, json request) {
  co_return hex_of_values(averaging_of(peer).power_sgd->residual(request.at("tensor").get<std::size_t>()));
}

Task<json> averager_bits(Peer& peer, json) {
  co_return averaging_of(peer).averager->group_bits();
}

}  // namespace

void add_averaging_commands(Commands& commands) {
  commands["averager_start"] = averager_start;
  commands["averager_step"] = averager_step;
  commands["averager_tensors"] = averager_tensors;
  commands["averager_share"] = averager_share;
  commands["averager_download"] = averager_download;
  commands["averager_bits"] = averager_bits;
  commands["averager_load_factors"] = averager_load_factors;
  commands["averager_residual"] = averager_residual;
}

}  // namespace cohive::interop
