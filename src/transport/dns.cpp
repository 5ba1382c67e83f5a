#include "dns.hpp"

#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <resolv.h>

#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "cohive/core/log.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::transport {
namespace {

constexpr int kMaxSteps = 32;  // per address, recursion included
constexpr std::size_t kMaxResults = 32;
constexpr std::size_t kMaxThreads = 8;

/// The threads of all look-ups of the process. They come when there is work and go when there is none.
class LookUpThreads {
 public:
  static LookUpThreads& get() {
    static auto* threads = new LookUpThreads;  // some may outlive the static objects
    return *threads;
  }
  /// False when the system gives us no thread.
  bool start(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
    if (count_ == kMaxThreads) return true;
    try {
      std::thread([this] { run(); }).detach();
      ++count_;
    } catch (const std::system_error&) {
      if (count_ == 0) waiting_.pop_back();
    }
    return count_ > 0;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!waiting_.empty()) {
      auto work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
    }
    --count_;
  }
  std::mutex mutex_;
  std::deque<std::function<void()>> waiting_;
  std::size_t count_ = 0;
};

/// What a look-up and the coroutine that waits for it share.
struct Inquiry {
  explicit Inquiry(Runtime& r) : runtime(&r), done(r, "name resolution") {}
  std::mutex mutex;
  Runtime* runtime;  ///< null once nobody waits: it may be gone
  std::atomic<bool> given_up = false;
  std::vector<Multiaddr> found;
  Event done;
};

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
  std::vector<std::uint8_t> answer(16 * 1024);
  const int size = ::res_query(name.c_str(), C_IN, ns_t_txt, answer.data(), static_cast<int>(answer.size()));
  ns_msg message;
  if (size <= 0 || ns_initparse(answer.data(), size, &message) != 0) return {};
  std::vector<std::string> texts;
  for (int i = 0; i < ns_msg_count(message, ns_s_an) && texts.size() < kMaxResults; ++i) {
    ns_rr record;
    if (ns_parserr(&message, ns_s_an, i, &record) != 0 || ns_rr_type(record) != ns_t_txt) continue;
    std::string text;
    const std::uint8_t* at = ns_rr_rdata(record);
    const std::uint8_t* end = at + ns_rr_rdlen(record);
    while (at < end && at + 1 + *at <= end) {  // character strings, each with its length
      text.append(reinterpret_cast<const char*>(at + 1), *at);
      at += 1 + *at;
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

/// What follows the first component, as text.
std::string tail_of(const Multiaddr& address) {
  const std::string text = address.text();
  const auto value = text.find('/', 1);
  const auto rest = text.find('/', value + 1);
  return rest == std::string::npos ? std::string() : text.substr(rest);
}

/// \param given_up  set once nobody waits for the result: look-ups take long, and worker threads are few
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
      const bool v6 = host.find(':') != std::string::npos;
      if (auto found = Multiaddr::from_text((v6 ? "/ip6/" : "/ip4/") + host + tail_of(address)))
        out.push_back(std::move(*found));
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

}  // namespace

Task<std::vector<Multiaddr>> in_background(Runtime& runtime, LookUp look_up) {
  struct Waiting {
    std::shared_ptr<Inquiry> inquiry;
    ~Waiting() {
      inquiry->given_up = true;
      const std::lock_guard lock(inquiry->mutex);
      inquiry->runtime = nullptr;
    }
  };
  const Waiting waiting{std::make_shared<Inquiry>(runtime)};
  const bool started = LookUpThreads::get().start([inquiry = waiting.inquiry, look_up = std::move(look_up)]() mutable {
    auto found = look_up(inquiry->given_up);
    const std::lock_guard lock(inquiry->mutex);
    if (!inquiry->runtime) return;
    inquiry->found = std::move(found);
    inquiry->runtime->post([inquiry] { inquiry->done.set(); });
  });
  if (!started) {
    log::warn("transport", "no thread to resolve a name on");
    co_return std::vector<Multiaddr>();
  }
  co_await waiting.inquiry->done.wait();
  co_return std::move(waiting.inquiry->found);
}

Task<Result<std::vector<Multiaddr>>> resolve_dns(Runtime& runtime, Multiaddr address) {
  const bool by_name = address.has(Multiaddr::dns) || address.has(Multiaddr::dns4) || address.has(Multiaddr::dns6) ||
                       address.has(Multiaddr::dnsaddr);
  if (!by_name) co_return std::vector<Multiaddr>{address};
  auto found = co_await in_background(runtime, [address](const std::atomic<bool>& given_up) {
    std::vector<Multiaddr> out;
    int steps = kMaxSteps;
    expand(address, given_up, steps, out);
    return out;
  });
  if (found.empty()) co_return Error(Errc::resolve_failed, address.text());
  co_return found;
}

}  // namespace cohive::transport
