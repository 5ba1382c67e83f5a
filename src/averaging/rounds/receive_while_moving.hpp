// Waiting for a message of a peer whose link may be slow: as long as its bytes keep coming, the peer is not silent.
#pragma once

#include <functional>
#include <optional>

#include "cohive/averaging/group.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/result.hpp"
#include "cohive/core/task.hpp"

namespace cohive::averaging {

/// Bytes that have to come within each `timeout`: a part of half a megabyte may take eight of them.
inline constexpr std::uint64_t kLeastProgress = 64 * 1024;

/// The next message of an rpc::ClientStream or rpc::ServerStream, which lives until then, as what `is_early` refers to.
/// \param timeout  for a message of which little comes; zero: no limit
/// \param is_early  tells that the peer cannot be expected to send it yet
/// \param end  of the wait: Errc::timeout
template <class Stream>
Task<Result<std::optional<Slice>>> receive_while_moving(Runtime& runtime, Stream& stream, Duration timeout,
                                                        std::function<bool()> is_early = nullptr,
                                                        Deadline end = Deadline::never()) {
  for (;;) {
    const std::uint64_t before = stream.received();
    auto message = co_await stream.receive(timeout_after(runtime, timeout).min(end));
    const bool late = !message && message.error() == cohive::Errc::timeout;
    if (!late || end.passed(runtime.now())) co_return message;
    const bool early = is_early && is_early();
    if (!early && stream.received() < before + kLeastProgress) co_return message;
  }
}

}  // namespace cohive::averaging
