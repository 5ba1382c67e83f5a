// Averaging rounds between peers on loopback, group forming included. Each peer is a process of its own.
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.hpp"
#include "cohive/averaging/averager.hpp"
#include "cohive/dht/dht.hpp"

namespace cohive::bench {
namespace {

constexpr int kRounds = 5;

Task<nlohmann::json> peer(Runtime& runtime, Settings settings, codec::Codec codec, std::vector<Multiaddr> initial,
                          int address_pipe) {
  const auto network = transport::make_tcp_network(runtime);
  p2p::HostOptions options;
  options.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()};
  p2p::Host host(*network, KeyPair::generate_ed25519(), options);
  host.start().value();
  Dht dht(host);
  (co_await dht.start(initial)).value();
  const std::size_t count = settings.megabytes * 1'000'000 / 4;
  std::vector<float> values(count, static_cast<float>(::getpid() % 100));
  averaging::AveragerOptions averaging_options;
  averaging_options.prefix = "bench";
  averaging_options.target_group_size = settings.peers;
  averaging_options.codec = codec;
  std::vector<averaging::AveragedTensor> tensors{{values, {static_cast<std::uint32_t>(count)}}};
  averaging::Averager averager(dht, std::move(tensors), averaging_options);
  averager.start();
  if (address_pipe >= 0) {
    const std::string address = host.visible_addresses().front().text() + "\n";
    if (::write(address_pipe, address.data(), address.size()) < 0) co_return nlohmann::json();
  }
  std::vector<double> seconds, exchange, cpu;
  std::size_t failed = 0;
  for (int round = 0; round <= kRounds; ++round) {
    const double start = now_seconds(), cpu_start = processor_seconds();
    auto result = co_await averager.step();
    failed += !result || result->parts_failed > 0;
    if (round == 0 || !result) continue;  // the first one also waits for the others to start
    seconds.push_back(now_seconds() - start);
    cpu.push_back(processor_seconds() - cpu_start);
    exchange.push_back(to_seconds(result->allreduce));
  }
  co_await runtime.sleep_for(500ms);  // the others may still be reading our parts
  co_await host.close();
  co_return nlohmann::json{{"round_p50_ms", percentile_ms(seconds, 0.5)},
                           {"exchange_p50_ms", percentile_ms(exchange, 0.5)},
                           {"cpu_p50_ms", percentile_ms(cpu, 0.5)},
                           {"failed", failed}};
}

nlohmann::json run_group(const Settings& settings, codec::Codec codec) {
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
      runtime->run(peer(*runtime, settings, codec, initial, i == 0 ? pipe_ends[1] : -1));
      ::_exit(0);
    }
    children.push_back(child);
    if (i == 0)
      for (char c; ::read(pipe_ends[0], &c, 1) == 1 && c != '\n';) first.push_back(c);
  }
  pin_to_core(settings.peers - 1);
  auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
  auto result = runtime->run(peer(*runtime, settings, codec, {Multiaddr::from_text(first).value()}, -1));
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
          {"float32", run_group(group, codec::Codec::none)},
          {"float16", run_group(group, codec::Codec::float16)}};
}

}  // namespace cohive::bench
