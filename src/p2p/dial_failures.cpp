#include "dial_failures.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"
#include "cohive/core/log_output.hpp"
#include "cohive/core/status.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "core/detail/said_once.hpp"

namespace cohive::p2p {
namespace {

struct DialFailureMetrics {
  explicit DialFailureMetrics(Runtime& runtime) {
    for (std::size_t i = 0; i < errors.size(); ++i)
      errors[i] = runtime.metrics().counter("cohive_p2p_dial_errors_total", "Dialled addresses that failed, by cause.",
                                            {{"reason", kDialFailures[i]}});
  }
  std::array<Counter, kDialFailures.size()> errors;
};

}  // namespace

DialFailure cause_of_dial_failure(const Multiaddr& address, const Error& error) {
  if (error == transport::Errc::peer_mismatch) return DialFailure::peer_mismatch;
  if (address.is_circuit()) return DialFailure::relay;
  if (error == cohive::Errc::timeout) return DialFailure::timeout;
  if (error == transport::Errc::refused) return DialFailure::refused;
  if (error == transport::Errc::unreachable) return DialFailure::unreachable;
  if (error == transport::Errc::dial_failed || error == transport::Errc::address_unsupported ||
      error == Errc::too_many_connections || error == Errc::host_closed)
    return DialFailure::other;
  const bool ended = error == cohive::Errc::end_of_stream || error == cohive::Errc::reset ||
                     error == cohive::Errc::closed || error == cohive::Errc::malformed;
  return ended || error.code().category() == transport::transport_category() ? DialFailure::handshake
                                                                             : DialFailure::other;
}

bool is_local_failure(const Error& error) {
  static constexpr std::array kLocal = {std::errc::network_unreachable,           std::errc::network_down,
                                        std::errc::address_not_available,         std::errc::too_many_files_open,
                                        std::errc::too_many_files_open_in_system, std::errc::no_buffer_space};
  return std::ranges::any_of(kLocal, [&](std::errc one) { return error.system() == one; });
}

void prepare_dial_failures(Runtime& runtime) {
  (void)runtime.local<DialFailureMetrics>();
}

DialFailure note_dial_failure(Runtime& runtime, const PeerId& peer, const Multiaddr& address, const Error& error) {
  const DialFailure failure = cause_of_dial_failure(address, error);
  const auto cause = static_cast<std::size_t>(failure);
  const std::string name = kDialFailures[cause], sentence = said_once(log::format("{} at {}: {}", peer, address.text(),
                                                                                  Error(error.code(), error.detail())));
  runtime.local<DialFailureMetrics>().errors[cause].increment();
  Failures::of(runtime).note("dial", name, sentence);
  log::write(log::Level::debug, "p2p",
             {{"event", "dial_failed"}, {"peer", peer}, {"address", address.text()}, {"cause", name}},
             "not connected to " + sentence);
  return failure;
}

}  // namespace cohive::p2p
