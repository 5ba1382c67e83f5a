#include "cohive/p2p/metrics_server.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "cohive/core/errors.hpp"
#include "cohive/core/log_output.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/core/status.hpp"
#include "cohive/core/try.hpp"
#include "cohive/core/version.hpp"
#include "core/detail/private_file.hpp"
#include "core/detail/process_metrics.hpp"
#include "http_server.hpp"
#include "page.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kMaxToken = 1024, kMaxTokenFile = 64 * 1024;
constexpr const char* kJson = "application/json";

/// In lower case; the brackets of an IPv6 address go, too.
std::string without_port(std::string_view host) {
  const auto bracket = host.find(']');
  if (host.starts_with('[') && bracket != host.npos) {
    host = host.substr(1, bracket - 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  std::string name(host);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

std::string own_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? without_port(name.data()) : "";
}

/// Whether a request for this host can only be meant for us. Any number can: a page elsewhere has a name.
bool is_ours(std::string_view host) {
  const std::string name = without_port(host);
  if (host.empty() || name == "localhost" || name.ends_with(".localhost")) return true;
  if (Multiaddr::from_text("/ip4/" + name) || Multiaddr::from_text("/ip6/" + name)) return true;
  const std::string machine = own_name();
  return !machine.empty() && (name == machine || name == machine.substr(0, machine.find('.')));
}

/// Whether a browser says that a page elsewhere has made the request: such a page cannot read the answer, but what the
/// request does is done. Programs that are no browsers send none of these fields; old browsers lack the first one.
bool is_of_another_site(const HttpRequest& request) {
  if (!request.fetch_site.empty()) return request.fetch_site != "same-origin" && request.fetch_site != "none";
  for (const std::string& url : {request.origin, request.referer}) {
    if (url.empty()) continue;
    const auto begin = url.find("://");
    if (begin == std::string::npos) return true;  // "null"
    const auto end = url.find('/', begin + 3);
    if (url.substr(begin + 3, end == std::string::npos ? end : end - begin - 3) != request.host) return true;
  }
  return false;
}

/// In a time that does not tell how much of it is right.
bool equal(std::string_view given, std::string_view wanted) {
  unsigned difference = given.size() == wanted.size() ? 0 : 1;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    difference |= static_cast<unsigned char>(wanted[i]) ^ static_cast<unsigned char>(i < given.size() ? given[i] : 0);
  return difference == 0;
}

std::string tasks_as_text(const std::vector<TaskInfo>& tasks) {
  std::string text =
      log::format("{} tasks, oldest first: seconds since the start, group / task, what it waits for\n", tasks.size());
  for (const TaskInfo& task : tasks)
    text += log::format("{:12.3f}  {} / {}: {}\n", to_seconds(task.age), task.group, task.name, task.waiting_for);
  return text;
}

std::string tasks_as_json(const std::vector<TaskInfo>& tasks) {
  auto list = nlohmann::json::array();
  for (const TaskInfo& task : tasks)
    list.push_back({{"group", task.group},
                    {"name", task.name},
                    {"waiting_for", task.waiting_for},
                    {"age_seconds", to_seconds(task.age)}});
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

Result<Multiaddr> parse_metrics_address(const std::string& address) {
  const auto refused = [&] {
    return Error(cohive::Errc::invalid_argument,
                 "metrics address " + log::quoted(address) + ": write host:port, for example 127.0.0.1:9464");
  };
  const auto colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) return refused();
  std::string host = address.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || host == "localhost") host = "127.0.0.1";
  const auto parsed =
      Multiaddr::from_text((bracketed ? "/ip6/" : "/ip4/") + host + "/tcp/" + address.substr(colon + 1));
  if (!parsed || parsed->components().size() != 2) return refused();  // the text had slashes
  return *parsed;
}

Result<std::string> read_token(const std::string& path) {
  TRY(const auto file, PrivateFile::open(path, "token file"));
  TRY(auto token, file.read(kMaxTokenFile));
  token.resize(std::min(token.find_first_of("\r\n"), token.size()));
  const auto printable = [](unsigned char c) { return c > 0x20 && c < 0x7f; };
  if (token.empty() || token.size() > kMaxToken || !std::ranges::all_of(token, printable))
    return Error(cohive::Errc::invalid_argument,
                 log::format("the first line of the token file {} must be a token: 1 to {} printable ASCII characters, "
                             "without spaces",
                             path, kMaxToken));
  return token;
}

struct MetricsServer::Impl {
  Impl(transport::Network& network, std::function<bool()> ready_check, MetricsOptions opts)
      : runtime(network.runtime()),
        ready(std::move(ready_check)),
        options(std::move(opts)),
        process(runtime.metrics()),
        started(runtime.now()),
        program(Status::of(runtime).add("program", [this] { return program_json(); })),
        http(network, [this](HttpRequest request) { return answer(std::move(request)); }) {
    Failures::of(runtime);  // shown from the beginning
  }

  Task<HttpResponse> answer(HttpRequest request) {
    const Path* further = find_path(request.path);
    const bool acts = further && further->effects == Effects::some;
    const auto unwanted = acts ? HttpRequest::Method::head : HttpRequest::Method::post;
    if (request.method == unwanted)
      co_return HttpResponse{.status = 405,
                             .body = acts ? "only GET and POST\n" : "only GET and HEAD\n",
                             .allow = acts ? "GET, POST" : "GET, HEAD"};
    auto refused = answer_without_token(request);
    if (refused) co_return std::move(*refused);
    if (acts && is_of_another_site(request))
      co_return HttpResponse{.status = 403, .body = "asked for by a page of another site\n"};
    if (further) {
      const bool below = further->path.ends_with('/');
      auto made = co_await further->answer(below ? request.path.substr(further->path.size()) : "");
      co_return HttpResponse{
          .status = made.status, .body = std::move(made.body), .content_type = std::move(made.content_type)};
    }
    co_return answer_with_token(request);
  }

  struct Path {
    std::string path;
    Answer answer;
    Effects effects;
  };
  const Path* find_path(const std::string& path) const {
    const auto found = std::ranges::find_if(paths, [&path](const Path& one) {
      return one.path == path || (one.path.ends_with('/') && path.starts_with(one.path));
    });
    return found == paths.end() ? nullptr : &*found;
  }

  /// Nothing: the request may see the rest.
  std::optional<HttpResponse> answer_without_token(const HttpRequest& request) {
    if (options.token.empty() && !is_ours(request.host))
      return HttpResponse{.status = 421,
                          .body = "no name of this machine: " + log::quoted(request.host, 100) +
                                  "; ask by its address, or start the program with --metrics-token-file\n"};
    if (request.path == "/healthz") return HttpResponse{.body = "ok\n"};
    if (request.path == "/readyz")
      return ready() ? HttpResponse{.body = "ready\n"} : HttpResponse{.status = 503, .body = "not ready\n"};
    if (request.path == "/")
      return HttpResponse{.body = page().html, .content_type = "text/html; charset=utf-8", .policy = page().policy};
    if (!options.token.empty() && !equal(request.authorization, "Bearer " + options.token))
      return HttpResponse{.status = 401, .body = "a token is needed\n", .authenticate = "Bearer"};
    return std::nullopt;
  }

  HttpResponse answer_with_token(const HttpRequest& request) {
    if (request.path == "/metrics") {
      process.update();
      std::string text = runtime.metrics().text();
      for (const auto& more : more_metrics) text += more();
      return {.body = std::move(text), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
    }
    if (request.path == "/status") return {.body = Status::of(runtime).json() + "\n", .content_type = kJson};
    if (request.path == "/debug/tasks") {
      if (request.query == "format=json") return {.body = tasks_as_json(runtime.tasks()), .content_type = kJson};
      return {.body = tasks_as_text(runtime.tasks())};
    }
    if (request.path == "/debug/log") {
      std::string text;
      for (const std::string& line : log::recent()) text += line + "\n";
      return {.body = std::move(text)};
    }
    std::string known = "/, /status, /metrics, /healthz, /readyz, /debug/tasks";
    for (const auto& further : paths) known += ", " + further.path;
    return {.status = 404, .body = "try " + known + " or /debug/log\n"};
  }

  std::string program_json() const {
    const double uptime = to_seconds(runtime.now() - started);
    return nlohmann::json{{"version", version()},
                          {"revision", revision()},
                          {"compiler", compiler()},
                          {"time", runtime.wall_time()},
                          {"started", runtime.wall_time() - uptime},
                          {"uptime_seconds", uptime}}
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  std::string url(bool for_browser) const {
    const Multiaddr& bound = http.listener().address();
    const bool v6 = bound.first_code() == Multiaddr::ip6;
    std::string host = bound.value(bound.first_code()).value();
    if (for_browser && bound.is_unspecified()) host = v6 ? "::1" : "127.0.0.1";
    return "http://" + (v6 ? "[" + host + "]" : host) + ":" + bound.value(Multiaddr::tcp).value() + "/";
  }

  Runtime& runtime;
  std::function<bool()> ready;
  const MetricsOptions options;
  ProcessMetrics process;
  TimePoint started;
  Subscription program;
  std::vector<Path> paths;
  std::vector<std::function<std::string()>> more_metrics;
  HttpServer http;
};

MetricsServer::MetricsServer(transport::Network& network, std::function<bool()> ready, MetricsOptions options)
    : impl_(std::make_unique<Impl>(network, std::move(ready), std::move(options))) {}
MetricsServer::~MetricsServer() = default;

Result<> MetricsServer::start(const std::string& address) {
  const auto endpoint = parse_metrics_address(address);
  if (!endpoint) return endpoint.error();
  if (auto started = impl_->http.start(*endpoint); !started) return started.error().with_context("metrics address");
  if (impl_->options.token.empty() && endpoint->scope() != Multiaddr::Scope::loopback)
    log::info("metrics",
              "all who can connect to {} see this node's peers and logs: --metrics-token-file asks for a token",
              impl_->url(false));
  return ok();
}

void MetricsServer::add_path(std::string path, Answer answer, Effects effects) {
  impl_->paths.push_back({std::move(path), std::move(answer), effects});
}
void MetricsServer::add_metrics(std::function<std::string()> text) {
  impl_->more_metrics.push_back(std::move(text));
}

std::string MetricsServer::url() const {
  return impl_->url(false) + "metrics";
}
std::string MetricsServer::page_url() const {
  return impl_->url(true);
}

}  // namespace cohive::p2p
