#include "monitor/doctor_command.hpp"

#include <iostream>

#include "cohive/core/combine.hpp"
#include "common/program.hpp"
#include "common/signals.hpp"
#include "dht/doctor.hpp"
#include "dht/values.hpp"
#include "monitor/run_doctor.hpp"

namespace cohive::tools {
namespace {

void print_finding(bool as_json, const std::string& target, const Finding& finding) {
  if (as_json) {
    nlohmann::json line{{"target", target.empty() ? nlohmann::json() : nlohmann::json(target)},
                        {"step", finding.step},
                        {"status", to_text(finding.status)},
                        {"text", finding.text},
                        {"details", finding.details}};
    if (!finding.advice.empty()) line["advice"] = finding.advice;
    std::cout << line_of(line) << std::endl;
    return;
  }
  const std::string status =
      finding.status == Finding::Status::failed ? "FAILED" : std::string(to_text(finding.status));
  std::cout << log::format("  {:<8} {:<12} {}", status, finding.step, finding.text) << std::endl;
  if (!finding.advice.empty()) std::cout << std::string(24, ' ') << "-> " << finding.advice << std::endl;
}

/// Prints findings, those of one target under its name.
class Printer {
 public:
  explicit Printer(bool as_json) : json_(as_json) {}
  void print(const std::string& target, const Finding& finding) {
    const std::string title = target.empty() ? "this machine" : target;
    if (!json_ && last_ != title) std::cout << title << std::endl;
    last_ = title;
    print_finding(json_, target, finding);
  }

 private:
  bool json_;
  std::string last_;
};

bool examine_run(Runtime& runtime, const DoctorCommand& command, std::vector<Multiaddr> initial, Printer& printer) {
  std::erase_if(initial, [](const Multiaddr& address) { return !address.peer(); });
  if (initial.empty()) throw Exit{kBadInput, "doctor: to look at a run, give addresses that end with /p2p/<peer id>"};
  const auto report = [&](const Finding& finding) { printer.print("run " + command.run_id, finding); };
  const auto ended = runtime.run(run_as_client(runtime, initial, command.member, true, [&](Dht& dht) {
    return diagnose_run(dht, command.run_id, initial, report);
  }));
  return ended == 0;
}

}  // namespace

void add_doctor_options(CLI::App& command, DoctorCommand& doctor) {
  command.add_option("ADDRESS", doctor.target, "of a peer (default: those of --initial-peers)");
  command.add_option("--host-maddrs", doctor.host_maddrs,
                     "where to listen, to see whether peers outside can connect there (default: any port)");
}

int run_doctor(const DoctorCommand& command) {
  dht::check_members(command.member.members).value();
  const std::vector<std::string> given =
      command.target.empty() ? initial_peers(command.initial_peers) : std::vector{command.target};
  if (given.empty()) throw Exit{kBadInput, "doctor: give an address, --initial-peers or $INITIAL_PEERS"};
  DoctorOptions doctor{parse_addresses(given, "doctor"), parse_addresses(command.host_maddrs, "--host-maddrs")};
  const auto initial = doctor.targets;
  auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
  const auto network = transport::make_tcp_network(*runtime);
  Printer printer(command.json);
  const auto report = [&](const Multiaddr& target, const Finding& finding) {
    printer.print(target.empty() ? "" : target.text(), finding);
  };
  const auto ended =
      runtime->run(race(*runtime, wait_for_stop(*runtime), diagnose(*network, std::move(doctor), report)));
  if (ended.index() == 0) return kFailed;
  const bool healthy = std::get<1>(ended);
  if (command.run_id.empty()) return healthy ? 0 : kFailed;
  return examine_run(*runtime, command, initial, printer) && healthy ? 0 : kFailed;
}

}  // namespace cohive::tools
