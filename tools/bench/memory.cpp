// Peak resident memory of peers beyond their tensors: of an all-reduce, and of both sides of a state download. Each
// peer is a process of its own, forked from one that has taken no memory yet.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "averaging/states/state_transfer.hpp"
#include "bench/bench.hpp"
#include "cohive/averaging/averager.hpp"
#include "cohive/dht/dht.hpp"

namespace cohive::bench {
namespace {

using averaging::SharedState;

constexpr std::size_t kTensors = 8;
constexpr int kAveragedRounds = 3;
const char* const kWhole = "bench::DecentralizedAverager.rpc_download_state";

/// The most memory this process ever had, in bytes.
double peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024;
  return 0;
}

/// A child and the two pipes by which it tells its address and its result, a line each.
struct Child {
  pid_t process;
  int lines;
  std::string line() const {
    std::string text;
    for (char c; ::read(lines, &c, 1) == 1 && c != '\n';) text.push_back(c);
    return text;
  }
  double end() const {
    const std::string result = line();
    ::waitpid(process, nullptr, 0);
    ::close(lines);
    return result.empty() ? -1 : std::stod(result);
  }
};

void tell(int pipe_end, std::string line) {
  line += '\n';
  if (::write(pipe_end, line.data(), line.size()) < 0) ::_exit(1);
}

/// Runs `peer(runtime, initial peers, pipe)`, which tells its address first, and tells the peak beyond `own` bytes.
template <class Peer>
Child start(std::string initial, double own, Peer peer) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t process = ::fork();
  if (process != 0) {
    ::close(ends[1]);
    return {process, ends[0]};
  }
  std::vector<Multiaddr> addresses;
  if (!initial.empty()) addresses = {Multiaddr::from_text(initial).value()};
  {
    auto runtime = make_runtime({.seed = 0, .pool_threads = 2});
    runtime->run(peer(*runtime, std::move(addresses), ends[1]));
  }
  tell(ends[1], std::to_string(peak_bytes() - own));
  ::_exit(0);
}

/// What every peer begins with.
struct LoopbackPeer {
  explicit LoopbackPeer(Runtime& runtime)
      : network(transport::make_tcp_network(runtime)),
        host(*network, KeyPair::generate_ed25519(), options()),
        dht(host) {
    host.start().value();
  }
  static p2p::HostOptions options() {
    p2p::HostOptions result;
    result.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()};
    return result;
  }
  std::unique_ptr<transport::Network> network;
  p2p::Host host;
  Dht dht;
};

averaging::AveragerOptions averager_options(codec::Codec codec) {
  averaging::AveragerOptions options;
  options.prefix = "bench";
  options.target_group_size = 2;
  options.codec = codec;
  return options;
}

// ---- All-reduce

Task<void> average(Runtime& runtime, std::vector<Multiaddr> initial, int pipe_end, std::size_t megabytes,
                   codec::Codec codec) {
  LoopbackPeer node(runtime);
  (co_await node.dht.start(initial)).value();
  const std::size_t count = megabytes * 1'000'000 / 4 / kTensors;
  std::vector<std::vector<float>> values(kTensors);
  for (auto& tensor : values) tensor.assign(count, static_cast<float>(::getpid() % 100));
  std::vector<averaging::AveragedTensor> tensors;
  for (auto& tensor : values) tensors.push_back({tensor, {static_cast<std::uint32_t>(count)}});
  averaging::Averager averager(node.dht, std::move(tensors), averager_options(codec));
  averager.start();
  tell(pipe_end, node.host.visible_addresses().front().text());
  for (int round = 0; round < kAveragedRounds; ++round) (co_await averager.step()).value();
  co_await runtime.sleep_for(500ms);  // the other may still be reading our parts
  co_await node.host.close();
}

nlohmann::json all_reduce(std::size_t megabytes, codec::Codec codec) {
  const auto peer = [=](Runtime& runtime, std::vector<Multiaddr> initial, int pipe_end) {
    return average(runtime, std::move(initial), pipe_end, megabytes, codec);
  };
  const double own = static_cast<double>(megabytes) * 1e6;
  const Child first = start({}, own, peer);
  const Child second = start(first.line(), own, peer);
  (void)second.line();
  const double beyond_first = first.end(), beyond_second = second.end();
  return {{"leader_mib", beyond_first / 1048576}, {"follower_mib", beyond_second / 1048576}};
}

// ---- State download

SharedState make_state(std::size_t megabytes) {
  SharedState state{msgpack::Map{{{"epoch", 1}}}, {}};
  state.version = 1;
  const std::size_t count = megabytes * 1'000'000 / 4 / kTensors;
  for (std::size_t i = 0; i < kTensors; ++i) {
    Slice memory = Slice::uninitialised(count * 4);
    auto* values = reinterpret_cast<float*>(memory.mutable_data());
    for (std::size_t k = 0; k < count; ++k) values[k] = static_cast<float>(k * (i + 1) % 8191) / 100;
    state.tensors.push_back({codec::DType::float32, {static_cast<std::uint32_t>(count)}, false, std::move(memory)});
  }
  return state;
}

Task<void> share(Runtime& runtime, std::vector<Multiaddr> initial, int pipe_end, std::size_t megabytes,
                 codec::Codec codec) {
  LoopbackPeer node(runtime);
  (co_await node.dht.start(initial)).value();
  averaging::StateSharing sharing(node.dht, {.prefix = "bench", .codec = codec});
  sharing.set_provider([state = make_state(megabytes)]() -> std::optional<SharedState> { return state; });
  sharing.start();
  tell(pipe_end, node.host.visible_addresses().front().text());
  (void)co_await wait_for_signal(runtime);
  co_await node.host.close();
}

/// \param whole  by hivemind's exchange, as from a Python donor
Task<void> download(Runtime& runtime, std::vector<Multiaddr> initial, int pipe_end, bool whole) {
  LoopbackPeer node(runtime);
  (co_await node.dht.start(initial)).value();
  averaging::StateSharing sharing(node.dht, {.prefix = "bench", .share = false});
  averaging::DownloadReport report;
  const double start = now_seconds();
  auto state = whole ? co_await averaging::receive_state(node.host, *initial.front().peer(), kWhole, 15s,
                                                         std::uint64_t{64} << 30, report)
                     : co_await sharing.download();
  state.value();
  tell(pipe_end, std::to_string(now_seconds() - start));
  co_await node.host.close();
}

nlohmann::json state_download(std::size_t megabytes, codec::Codec codec, bool whole) {
  const double own = static_cast<double>(megabytes) * 1e6;
  const Child donor = start({}, own, [=](Runtime& runtime, std::vector<Multiaddr> initial, int pipe_end) {
    return share(runtime, std::move(initial), pipe_end, megabytes, codec);
  });
  const Child client = start(donor.line(), own, [=](Runtime& runtime, std::vector<Multiaddr> initial, int pipe_end) {
    return download(runtime, std::move(initial), pipe_end, whole);
  });
  const double seconds = std::stod(client.line());
  const double beyond_client = client.end();
  ::kill(donor.process, SIGTERM);
  const double beyond_donor = donor.end();
  return {{"donor_mib", beyond_donor / 1048576}, {"client_mib", beyond_client / 1048576}, {"seconds", seconds}};
}

}  // namespace

nlohmann::json memory(const Settings& settings) {
  nlohmann::json result{{"benchmark", "memory"},
                        {"tensors_megabytes", settings.tensors_megabytes},
                        {"state_megabytes", settings.state_megabytes}};
  for (const auto& [name, codec] : {std::pair("float32", codec::Codec::none), {"float16", codec::Codec::float16}}) {
    result["allreduce"][name] = all_reduce(settings.tensors_megabytes, codec);
    result["download"][name] = state_download(settings.state_megabytes, codec, false);
    result["download_as_hivemind"][name] = state_download(settings.state_megabytes, codec, true);
  }
  return result;
}

}  // namespace cohive::bench
