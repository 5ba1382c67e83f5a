// multistream-select in all three roles. Input: role, then the other side's bytes.
#include "cohive/transport/multistream.hpp"

#include "cohive/core/combine.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "fuzz.hpp"
#include "transport/memory_connection.hpp"
#include "transport/raw_stream.hpp"

namespace cohive::fuzz {
namespace {

using namespace transport;

Task<void> negotiate(StreamPtr stream, int role, Deadline deadline) {
  if (role == 0) {
    (void)co_await answer_selection(*stream, [](std::string_view name) { return name == "/chat/1"; }, deadline);
  } else if (role == 1) {
    (void)co_await select_one_of(*stream, {"/chat/2", "/chat/1"}, deadline);
  } else {
    stream = select_lazily(std::move(stream), "/chat/1");
    if (!co_await stream->write(as_bytes("hello"), deadline)) co_return;
    (void)co_await stream->read(deadline);
  }
}

}  // namespace

COHIVE_FUZZ_TARGET(multistream)(ByteView bytes) {
  Input input(bytes);
  SimRuntime runtime;
  transport::test::Wire wire(runtime);
  const auto raw = wire.our_end();
  const int role = input.byte() % 3;
  wire.send(input.rest());
  wire.finish();
  runtime.run(negotiate(std::make_unique<RawStream>(runtime, *raw), role, runtime.after(10s)));
}

}  // namespace cohive::fuzz
