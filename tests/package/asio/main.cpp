// An echo over a socket of this program's, while a cohive host answers pings.
#include <boost/asio.hpp>
#include <cstdio>

#include "cohive/core/keys.hpp"
#include "cohive/p2p/host.hpp"

namespace asio = boost::asio;

std::string echo(std::string text) {
  asio::io_context context;
  asio::ip::tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
  asio::ip::tcp::socket client(context), server(context);
  std::string received(text.size(), ' ');
  acceptor.async_accept(server, [&](auto) { asio::async_write(server, asio::buffer(text), [](auto, auto) {}); });
  client.async_connect(acceptor.local_endpoint(),
                       [&](auto) { asio::async_read(client, asio::buffer(received), [](auto, auto) {}); });
  context.run();
  return received;
}

int main() {
  using namespace cohive;
  const auto runtime = make_runtime();
  const auto network = transport::make_tcp_network(*runtime);
  const p2p::HostOptions options{.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()}};
  p2p::Host alice(*network, KeyPair::generate_ed25519(), options), bob(*network, KeyPair::generate_ed25519(), options);
  bob.start().value();
  runtime->run(alice.connect(bob.visible_addresses().front(), runtime->after(5s))).value();
  const auto pinged = runtime->run(p2p::ping(alice, bob.id(), runtime->after(5s)));
  std::printf("%s\n", echo("hello").c_str());
  return pinged && echo("hello") == "hello" ? 0 : 1;
}
