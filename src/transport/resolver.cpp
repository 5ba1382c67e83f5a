#include "cohive/transport/resolver.hpp"

#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <resolv.h>

#include "cohive/core/combine.hpp"
#include "cohive/transport/errors.hpp"
#include "look_up_threads.hpp"
#include "txt_answer.hpp"

namespace cohive::transport {
namespace {

constexpr int kMaxSteps = 32;  // per address, recursion included
constexpr std::size_t kMaxResults = 32;
constexpr std::size_t kMaxDnsAnswer = 64 * 1024;  // over TCP, whose lengths have two bytes

std::vector<std::string> look_up_hosts(const std::string& name, int family) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return {};
  std::vector<std::string> hosts;
  for (const addrinfo* one = list; one && hosts.size() < kMaxResults; one = one->ai_next) {
    char text[INET6_ADDRSTRLEN] = {};
    const void* ip = one->ai_family == AF_INET
                         ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(one->ai_addr)->sin_addr)
                         : static_cast<const void*>(&reinterpret_cast<sockaddr_in6*>(one->ai_addr)->sin6_addr);
    if (inet_ntop(one->ai_family, ip, text, sizeof text)) hosts.emplace_back(text);
  }
  ::freeaddrinfo(list);
  return hosts;
}

std::vector<std::string> look_up_txt(const std::string& name) {
  Bytes answer(kMaxDnsAnswer);
  // Of an answer that does not fit, this is the length of all of it.
  const int size = ::res_query(name.c_str(), C_IN, ns_t_txt, answer.data(), static_cast<int>(answer.size()));
  if (size <= 0 || static_cast<std::size_t>(size) > answer.size()) return {};
  return texts_of(ByteView(answer).first(static_cast<std::size_t>(size)));
}

/// \param given_up  set once no task waits for the result: look-ups take long, and worker threads are few
void expand(const Multiaddr& address, const std::atomic<bool>& given_up, int& steps, std::vector<Multiaddr>& out) {
  const auto parts = address.components();
  const auto code = parts.empty() ? 0 : parts[0].code;
  const bool host_name = code == Multiaddr::dns || code == Multiaddr::dns4 || code == Multiaddr::dns6;
  if (!host_name && code != Multiaddr::dnsaddr) {
    if (out.size() < kMaxResults) out.push_back(address);
    return;
  }
  if (--steps < 0 || given_up) return;
  const std::string name = to_string(parts[0].value);
  if (host_name) {
    const int family = code == Multiaddr::dns4 ? AF_INET : code == Multiaddr::dns6 ? AF_INET6 : AF_UNSPEC;
    for (const auto& host : look_up_hosts(name, family)) {
      const auto numeric = Multiaddr::from_ip_tcp(host, 0);
      if (numeric && out.size() < kMaxResults) out.push_back(address.with_host_of(*numeric));
    }
    return;
  }
  for (const auto& text : look_up_txt("_dnsaddr." + name)) {
    if (!text.starts_with("dnsaddr=")) continue;
    const auto found = Multiaddr::from_text(std::string_view(text).substr(8));
    if (!found) continue;
    // An entry for another peer than the one asked for is not meant for us.
    if (const auto wanted = address.peer(); wanted && found->peer() != wanted) continue;
    expand(*found, given_up, steps, out);
  }
}

Task<Result<std::vector<Multiaddr>>> look_up(Runtime& runtime, Multiaddr address, NamedBy named_by) {
  auto found = co_await in_background(
      runtime,
      [address](const std::atomic<bool>& given_up) {
        std::vector<Multiaddr> out;
        int steps = kMaxSteps;
        expand(address, given_up, steps, out);
        return out;
      },
      named_by);
  if (found.empty()) co_return Error(Errc::resolve_failed, address.text());
  co_return found;
}

class SystemResolver final : public Resolver {
 public:
  explicit SystemResolver(Runtime& runtime) : runtime_(runtime) {}
  Task<Result<std::vector<Multiaddr>>> resolve(Multiaddr address, Deadline deadline) override {
    co_return co_await resolve_name(std::move(address), NamedBy::user, deadline);
  }
  Task<Result<std::vector<Multiaddr>>> resolve_announced(Multiaddr address, Deadline deadline) override {
    co_return co_await resolve_name(std::move(address), NamedBy::stranger, deadline);
  }

 private:
  Task<Result<std::vector<Multiaddr>>> resolve_name(Multiaddr address, NamedBy named_by, Deadline deadline) {
    if (!is_name(address)) co_return std::vector<Multiaddr>{std::move(address)};
    co_return co_await within(runtime_, deadline, look_up(runtime_, std::move(address), named_by), "name resolution");
  }
  Runtime& runtime_;
};

/// Of a world without name servers.
class NumericResolver final : public Resolver {
 public:
  Task<Result<std::vector<Multiaddr>>> resolve(Multiaddr address, Deadline) override {
    if (is_name(address)) co_return Error(Errc::resolve_failed, address.text());
    co_return std::vector<Multiaddr>{std::move(address)};
  }
};

}  // namespace

std::unique_ptr<Resolver> make_resolver(Runtime& runtime) {
  if (runtime.simulated()) return std::make_unique<NumericResolver>();
  return std::make_unique<SystemResolver>(runtime);
}

bool is_name(const Multiaddr& address) {
  const auto code = address.first_code();
  return code == Multiaddr::dns || code == Multiaddr::dns4 || code == Multiaddr::dns6 || code == Multiaddr::dnsaddr;
}

}  // namespace cohive::transport
