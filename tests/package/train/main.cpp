// A trainer without a machine-learning library: an epoch of two batches is one step of gradient descent.
#include <cstdio>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/dht/validation.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/run.hpp"
#include "cohive/transport/sim_network.hpp"

using namespace cohive;

int main() {
  SimRuntime runtime;
  transport::SimFabric fabric(runtime, {.latency = 5ms});
  const auto machine = fabric.add_machine();
  p2p::Host host(*machine, KeyPair::ed25519_from_seed(Bytes(32, 1)),
                 {.listen = {Multiaddr::from_text("/ip4/0.0.0.0/tcp/4001").value()}});
  host.start().value();
  Dht dht(host);
  const auto key = std::make_shared<dht::RsaSignatureValidator>();
  dht.add_validator(key);
  train::PlainReplica model(runtime, {{4}}, optim::SgdOptions{.lr = 0.5});
  train::RunOptions options;
  options.run_id = "package";
  options.target_batch_size = 8;
  {
    train::Run run(dht, key, model, options);
    run.start();
    const std::vector<float> gradient(4, 2.0f);
    for (int batch = 0; batch < 2; ++batch) {
      model.add_gradients({gradient}, 4);
      if (run.count(4) == train::Run::Next::synchronise) runtime.run(run.synchronise());
    }
    runtime.run(run.settle());
    std::printf("epoch %d\n", static_cast<int>(run.epoch()));
    runtime.run(run.close());
  }
  std::printf("%g\n", model.parameter(0)[0]);
  return model.parameter(0)[0] == -1.0f ? 0 : 1;
}
