// Averaging rounds between peers on loopback, group forming included. Each peer is a process of its own.
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.hpp"
#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/power_sgd.hpp"
#include "cohive/dht/dht.hpp"

namespace cohive::bench {
namespace {

constexpr int kRounds = 5;
constexpr std::size_t kColumns = 1024;  // of the matrix that is averaged

/// How the matrix travels.
struct Way {
  codec::Codec codec = codec::Codec::none;
  std::size_t rank = 0;  ///< of PowerSGD; 0: as it is
  double verified_share = 0;
};

Task<nlohmann::json> peer(Runtime& runtime, Settings settings, Way way, std::vector<Multiaddr> initial,
                          int address_pipe) {
  const auto network = transport::make_tcp_network(runtime);
  p2p::HostOptions options;
  options.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()};
  p2p::Host host(*network, KeyPair::generate_ed25519(), options);
  host.start().value();
  Dht dht(host);
  (co_await dht.start(initial)).value();
  const std::size_t rows = std::max<std::size_t>(1, settings.megabytes * 1'000'000 / 4 / kColumns);
  const codec::Shape shape{static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(kColumns)};
  std::vector<float> values(rows * kColumns, static_cast<float>(::getpid() % 100));
  averaging::AveragerOptions averaging_options;
  averaging_options.prefix = "bench";
  averaging_options.target_group_size = settings.peers;
  averaging_options.codec = way.codec;
  averaging_options.verified_share = way.verified_share;
  std::optional<averaging::PowerSgd> power_sgd;
  if (way.rank > 0) {
    const averaging::TensorInfo schema[] = {{shape}};
    averaging_options.scheme = power_sgd.emplace(schema, averaging::PowerSgdOptions{way.rank}).scheme();
  }
  std::vector<averaging::AveragedTensor> tensors{{values, shape}};
  averaging::Averager averager(dht, std::move(tensors), averaging_options);
  averager.start();
  if (address_pipe >= 0) {
    const std::string address = host.visible_addresses().front().text() + "\n";
    if (::write(address_pipe, address.data(), address.size()) < 0) co_return nlohmann::json();
  }
  std::vector<double> seconds, exchange, cpu;
  std::size_t failed = 0;
  std::uint64_t sent = 0;
  for (int round = 0; round <= kRounds; ++round) {
    const double start = now_seconds(), cpu_start = processor_seconds();
    auto result = co_await averager.step();
    failed += !result || result->parts_failed > 0;
    if (round == 0 || !result) continue;  // the first one also waits for the other peers to start
    seconds.push_back(now_seconds() - start);
    cpu.push_back(processor_seconds() - cpu_start);
    exchange.push_back(to_seconds(result->allreduce));
    sent = result->bytes_sent;
  }
  co_await runtime.sleep_for(500ms);  // the other peers may still be reading our parts
  co_await host.close();
  co_return nlohmann::json{{"round_p50_ms", percentile_ms(seconds, 0.5)},
                           {"exchange_p50_ms", percentile_ms(exchange, 0.5)},
                           {"cpu_p50_ms", percentile_ms(cpu, 0.5)},
                           {"megabytes_sent", static_cast<double>(sent) / 1e6},
                           {"failed", failed}};
}

nlohmann::json run_group(const Settings& settings, Way way) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) throw std::runtime_error("pipe failed");
  std::vector<pid_t> children;
  std::string first;
  for (std::size_t i = 0; i + 1 < settings.peers; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      pin_to_core(i);
      auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
      std::vector<Multiaddr> initial;
      if (!first.empty()) initial = {Multiaddr::from_text(first).value()};
      runtime->run(peer(*runtime, settings, way, initial, i == 0 ? pipe_ends[1] : -1));
      ::_exit(0);
    }
    children.push_back(child);
    if (i == 0)
      for (char c; ::read(pipe_ends[0], &c, 1) == 1 && c != '\n';) first.push_back(c);
  }
  pin_to_core(settings.peers - 1);
  auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
  auto result = runtime->run(peer(*runtime, settings, way, {Multiaddr::from_text(first).value()}, -1));
  for (pid_t child : children) ::waitpid(child, nullptr, 0);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  return result;
}

}  // namespace

nlohmann::json allreduce(const Settings& settings) {
  Settings group = settings;
  group.peers = std::max<std::size_t>(settings.peers, 2);
  return {{"benchmark", "allreduce"},
          {"peers", group.peers},
          {"megabytes", group.megabytes},
          {"float32", run_group(group, {})},
          {"float16", run_group(group, {codec::Codec::float16})},
          {"float16_checked_1_percent", run_group(group, {.codec = codec::Codec::float16, .verified_share = 0.01})},
          {"powersgd_4", run_group(group, {.rank = 4})},
          {"powersgd_32", run_group(group, {.rank = 32})}};
}

}  // namespace cohive::bench
