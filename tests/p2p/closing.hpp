// A peer that answers and leaves, on a real or a simulated network.
#pragma once

#include <gtest/gtest.h>

#include "cohive/core/sync.hpp"
#include "cohive/p2p/host.hpp"

namespace cohive::p2p::closing {

inline constexpr std::size_t kAnswer = 8 * 1024 * 1024;

inline Task<void> drain(transport::StreamPtr stream) {
  for (;;) {
    auto bytes = co_await stream->read(Deadline::never());
    if (!bytes || bytes->empty()) co_return;
  }
}

/// Answers one byte with kAnswer bytes and says when they are written.
inline Task<void> answer(transport::StreamPtr stream, Event& answered) {
  transport::StreamReader reader(*stream);
  if (!co_await reader.read_exactly(1, stream->runtime().after(10s))) co_return;
  const Bytes data(kAnswer, 7);
  auto written = co_await stream->write(data, stream->runtime().after(60s));
  EXPECT_TRUE(written) << written.error();
  stream->close_write();
  answered.set();
}

inline void serve(Host& host, Event& answered) {
  host.set_handler("/answer/1",
                   [&answered](transport::StreamPtr stream) { return answer(std::move(stream), answered); });
  host.set_handler("/drain/1", [](transport::StreamPtr stream) { return drain(std::move(stream)); });
}

inline Task<void> leave_after(Host& host, Event& answered) {
  co_await answered.wait();
  co_await host.close();
}

/// Sends until the connection ends: some of it is on its way whenever the other side closes.
inline Task<void> chatter(Host& host, PeerId to) {
  auto stream = co_await host.open_stream(to, "/drain/1", host.runtime().after(10s));
  if (!stream) co_return;
  const Bytes words(16 * 1024, 1);
  while (co_await (*stream)->write(words, Deadline::never())) co_await host.runtime().yield();
}

/// How many bytes of the answer came, and the error that ended them, if any.
struct Heard {
  std::size_t bytes = 0;
  std::optional<Error> failure;
};

inline Task<Heard> ask(Host& host, PeerId from) {
  Heard heard;
  auto stream = co_await host.open_stream(from, "/answer/1", host.runtime().after(10s));
  if (!stream) {
    heard.failure = stream.error();
    co_return heard;
  }
  (void)co_await (*stream)->write(as_bytes("?"), host.runtime().after(10s));
  for (;;) {
    auto bytes = co_await (*stream)->read(host.runtime().after(60s));
    if (!bytes) heard.failure = bytes.error();
    if (!bytes || bytes->empty()) co_return heard;
    heard.bytes += bytes->size();
  }
}

}  // namespace cohive::p2p::closing
