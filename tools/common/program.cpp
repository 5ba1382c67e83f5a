#include "common/program.hpp"

#include <cstdlib>
#include <iostream>
#include <sstream>

#include "cohive/core/errors.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::tools {
namespace {

std::string one_line(std::string text) {
  const auto end = text.find('\n');
  return end == std::string::npos ? text : text.substr(0, end);
}

int fail(const std::string& program, const std::string& message, int code) {
  std::cerr << program << ": " << one_line(message) << std::endl;
  return code;
}

}  // namespace

int run_program(int argc, char** argv, CLI::App& app, const std::function<int()>& body) {
  const std::string name = app.get_name();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    return fail(name, std::string(error.what()) + " (see " + name + " --help)", kBadInput);
  }
  try {
    return body();
  } catch (const Exit& exit) {
    return fail(name, exit.message, exit.code);
  } catch (const ErrorException& error) {
    return fail(name, error.what(), code_for(error.error()));
  } catch (const std::exception& error) {
    return fail(name, error.what(), kFailed);
  }
}

int code_for(const Error& error) {
  // A peer that is not the one named in the address is the user's mistake; one that does not answer is not.
  if (error.message().find(make_error_code(transport::Errc::peer_mismatch).message()) != std::string::npos)
    return kBadInput;
  if (error == make_error_code(p2p::Errc::bootstrap_failed) || error == make_error_code(cohive::Errc::not_found) ||
      error == make_error_code(cohive::Errc::timeout))
    return kFailed;
  return kBadInput;
}

void add_log_options(CLI::App& app, log::Options& options) {
  app.add_option_function<std::string>(
         "--log-format", [&options](const std::string& text) { options.format = *log::format_from_text(text); },
         "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  app.add_option_function<std::string>(
         "--log-level", [&options](const std::string& text) { options.level = *log::level_from_text(text); },
         "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
}

std::vector<Multiaddr> parse_addresses(const std::vector<std::string>& texts, const std::string& flag) {
  std::vector<Multiaddr> result;
  for (const auto& text : texts) {
    auto address = Multiaddr::from_text(text);
    if (!address)
      throw Exit{kBadInput, flag + ": " + address.error().message() + "; write for example /ip4/203.0.113.7/tcp/31337"};
    result.push_back(std::move(*address));
  }
  return result;
}

std::vector<Multiaddr> parse_initial_peers(const std::vector<std::string>& texts) {
  auto result = parse_addresses(texts, "--initial-peers");
  for (const auto& address : result)
    if (!address.peer() && !address.has(Multiaddr::dnsaddr))
      throw Exit{kBadInput, "--initial-peers: " + address.text() + " must end with /p2p/<peer id>"};
  return result;
}

std::vector<std::string> initial_peers(const std::vector<std::string>& given) {
  std::string all;
  for (const auto& text : given) all += text + " ";
  for (const char* name : {"INITIAL_PEERS", "PL_INITIAL_PEERS"}) {
    const char* text = std::getenv(name);
    if (all.empty() && text) all = text;
  }
  for (char& c : all)
    if (c == ',') c = ' ';
  std::istringstream words(all);
  std::vector<std::string> result;
  for (std::string word; words >> word;) result.push_back(word);
  return result;
}

}  // namespace cohive::tools
