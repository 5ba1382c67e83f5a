// A program of Boost.Asio that takes cohive in, on the io_context that it has: an Asio coroutine serves the values of a
// DHT over TCP and awaits cohive's task there; a task of cohive awaits Asio's timer and sockets in turn.
// CMakeLists.txt beside this file says how to build it.
#include <boost/asio.hpp>
#include <iostream>

#include "cohive/core/asio.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/core/try.hpp"
#include "cohive/dht/dht.hpp"

using namespace cohive;
namespace asio = boost::asio;
using asio::ip::tcp;

/// Asio's coroutine awaits a Task: any completion token does, a callback or use_future too.
asio::awaitable<void> serve_one(tcp::acceptor& acceptor, Runtime& runtime, Dht& dht) {
  tcp::socket socket = co_await acceptor.async_accept(asio::use_awaitable);
  std::string key;
  co_await asio::async_read_until(socket, asio::dynamic_buffer(key, 100), '\n', asio::use_awaitable);
  key.pop_back();
  const auto found = co_await async_run(runtime, dht.get(key, false, runtime.after(5s)), asio::use_awaitable);
  const std::string answer = found ? *found->value()->get_if<std::string>() : found.error().message();
  co_await asio::async_write(socket, asio::buffer(answer + "\n"), asio::use_awaitable);
}

/// A Task awaits Asio's operations, which give Results like cohive's own.
Task<Result<std::string>> ask(asio::io_context& context, tcp::endpoint server, std::string key) {
  asio::steady_timer pause(context, 10ms);
  CO_TRY(co_await pause.async_wait(use_task));
  tcp::socket socket(context);
  CO_TRY(co_await socket.async_connect(server, use_task));
  CO_TRY(co_await asio::async_write(socket, asio::buffer(key + "\n"), use_task));
  std::string answer;
  CO_TRY(co_await asio::async_read_until(socket, asio::dynamic_buffer(answer), '\n', use_task));
  co_return answer;
}

Task<Result<std::string>> store_and_ask(asio::io_context& context, tcp::endpoint server, Dht& dht) {
  CO_TRY(co_await dht.start({}));  // the first node of a new swarm
  CO_TRY(co_await dht.store("motto", "together", dht.now() + 60));
  // Asio's operations have no deadlines: within() drops the task, which cancels them.
  co_return co_await within(dht.runtime(), dht.runtime().after(10s), ask(context, server, "motto"), "asking");
}

int main() {
  asio::io_context context;
  const auto runtime = make_runtime(context);
  const auto network = transport::make_tcp_network(*runtime);
  p2p::Host host(*network, KeyPair::generate_ed25519());
  Dht dht(host);
  tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
  asio::co_spawn(context, serve_one(acceptor, *runtime, dht), asio::detached);
  std::string answer;
  async_run(*runtime, store_and_ask(context, acceptor.local_endpoint(), dht), [&](auto, Result<std::string> outcome) {
    answer = outcome ? *outcome : outcome.error().message();
    context.stop();  // or close the Dht and the host: run() ends when nothing is left to do
  });
  context.run();
  std::cout << answer;
  return answer == "together\n" ? 0 : 1;
}
