// The doctor's step `nat`.
#include <gtest/gtest.h>

#include <map>

#include "cohive/testing/swarm.hpp"
#include "dht/doctor.hpp"

namespace cohive::tools {
namespace {

/// A peer that has a relay, too, is dialled from any port.
TEST(Doctor, ComparesPortsOfConnectionsFromTheListeningPortAlone) {
  sim::Swarm swarm({.plaintext = false});
  DoctorOptions options{.targets = {}, .listen = {Multiaddr::from_text("/ip4/192.168.1.5/tcp/4001").value()}};
  for (const char* ip : {"9.1.9.9", "9.2.9.9"})
    options.targets.push_back(swarm.add_host_at(ip).visible_addresses().front());
  const auto circuit = Multiaddr::from_text(options.targets.front().text() + "/p2p-circuit").value();
  p2p::Host& relayed =
      swarm.add_host_at("9.3.9.9", {.announce = {Multiaddr::from_text("/ip4/9.3.9.9/tcp/4001").value(), circuit}});
  ASSERT_TRUE(swarm.run(relayed.bootstrap({options.targets.front()}, swarm.after(10s))));
  swarm.pass(1s);

  swarm.fabric().set_nat("192.168.1.5", "8.8.4.4");
  const auto machine = swarm.fabric().add_machine("192.168.1.5");
  std::map<std::string, Finding> found;
  (void)swarm.run(diagnose(*machine, options, [&](const Multiaddr&, const Finding& finding) {
    found.insert_or_assign(finding.step, finding);
  }));
  const auto& details = found.at("nat").details;
  EXPECT_EQ(details.at("witnesses"), 3) << "the one that has a relay was met, too";
  EXPECT_EQ(details.at("kind"), "endpoint-independent") << found.at("nat").text;
}

}  // namespace
}  // namespace cohive::tools
