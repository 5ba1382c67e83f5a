// Donors of the state that are slow, on thin lines or on purpose.
#include "shared_states.hpp"

namespace cohive::averaging {
namespace {

TEST_F(SharedStates, ASlowDonorDoesNotHoldUpTheEnd) {
  const auto state = state_with(7, 1);
  donor(state, 9);  // the best, and the slow one
  donor(state, 5);
  StateSharer& late = newcomer();
  swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 1e6});
  swarm.fabric().set_link(sim::Swarm::ip(1), sim::Swarm::ip(3), {.latency = 10ms, .bandwidth = 2e4});
  const auto start = swarm.runtime().now();
  const auto found = download(late);
  ASSERT_TRUE(found) << found.error();
  expect_same(*found, state);
  EXPECT_LT(swarm.runtime().now() - start, 13s) << "ten megabytes at the faster one's megabyte a second";
}

TEST_F(SharedStates, ADonorThatTricklesIsLeftForAFasterOneWithAnotherState) {
  donor(state_with(8, 100), 9);  // the best, and the slow one
  const auto other = state_with(7, 1);
  StateSharer& fast = donor(other, 5);
  StateSharer& late = newcomer();
  swarm.fabric().set_link(sim::Swarm::ip(1), sim::Swarm::ip(3), {.latency = 10ms, .bandwidth = 4e4});
  const auto start = swarm.runtime().now();
  const auto found = download(late, {.limit = 60s});
  ASSERT_TRUE(found) << found.error();
  EXPECT_EQ(found->donor, fast.id());
  expect_same(*found, other);
  EXPECT_LT(swarm.runtime().now() - start, 30s);
}

/// A state, and how it is cut into pieces.
struct CutState {
  explicit CutState(SharedState whole) : state(std::make_shared<const SharedState>(std::move(whole))) {
    ManifestBuilder builder(state, nullptr, codec::Codec::none);
    while (builder.describe().value()) {
    }
    builder.hash(0, builder.pieces()).value();
    manifest = builder.take();
  }
  std::shared_ptr<const SharedState> state;
  Manifest manifest;
};

/// Serves a state as donors do, with a pause before each piece of a call.
using Pauses = std::function<Duration(std::size_t piece)>;
Task<Result<>> serve_with_pauses(Runtime& runtime, rpc::ServerStream& stream, std::shared_ptr<const CutState> cut,
                                 Pauses pauses) {
  auto request = co_await stream.receive(runtime.after(20s));
  if (!request || !*request) co_return ok();
  const auto wanted = parse_manifest_request(**request);
  const std::string bytes = encode_manifest(cut->manifest);
  const StateRoot root = root_of(as_bytes(bytes));
  const std::string head = encode_manifest_head({root, bytes.size()});
  if (auto sent = co_await stream.send(as_bytes(head), runtime.after(20s)); !sent) co_return sent;
  if (!wanted || (!wanted->empty() && *wanted != root)) co_return ok();
  if (auto sent = co_await stream.send(as_bytes(bytes), runtime.after(20s)); !sent) co_return sent;
  for (std::size_t served = 0;; ++served) {
    request = co_await stream.receive(runtime.after(60s));
    if (!request || !*request) co_return ok();
    const auto asked = parse_piece(**request);
    if (!asked || asked->index >= cut->manifest.hashes.size()) co_return ok();
    const Piece place = cut->manifest.piece(asked->index);
    const auto piece = read_piece(*cut->state, nullptr, cut->manifest.tensors[place.tensor], place);
    if (!piece) co_return piece.error();
    co_await runtime.sleep_for(pauses(served));
    const std::string before = piece_head(asked->index, piece->size());
    const ByteView parts[] = {as_bytes(before), piece->view()};
    if (auto sent = co_await stream.send(std::span<const ByteView>(parts), runtime.after(20s)); !sent) co_return sent;
  }
}

class Tricklers : public SharedStates {
 protected:
  /// A donor of a state of its own that comes first, and one that is through in a hundred seconds.
  void expect_the_honest_donor(Pauses pauses) {
    const auto cut = std::make_shared<const CutState>(state_with(8, 100));
    const auto other = state_with(7, 1);
    foreign_donor(9, "rpc_download_pieces", [&runtime = swarm.runtime(), cut, pauses](rpc::ServerStream& stream) {
      return serve_with_pauses(runtime, stream, cut, pauses);
    });
    StateSharer& honest = donor(other, 5);
    StateSharer& late = newcomer();
    swarm.fabric().set_link(sim::Swarm::ip(2), sim::Swarm::ip(3), {.latency = 10ms, .bandwidth = 1e5});
    const TimePoint start = swarm.runtime().now();
    const auto found = download(late);
    ASSERT_TRUE(found) << found.error();
    EXPECT_EQ(found->donor, honest.id());
    expect_same(*found, other);
    EXPECT_LT(swarm.runtime().now() - start, 200s);
  }
};

TEST_F(Tricklers, ThatAreFastWhenTheyAreTriedAreNotComeBackTo) {
  expect_the_honest_donor([](std::size_t piece) -> Duration { return piece < 8 ? 0s : 10s; });
}

TEST_F(Tricklers, ThatAreFastWhileOthersAreTriedAreLeftAllTheSame) {
  expect_the_honest_donor([](std::size_t piece) -> Duration { return piece < 20 ? Duration(700ms) : Duration(11s); });
}

TEST_F(SharedStates, AnEmptyStateIsNoSoonerOne) {
  const auto best = state_with(8, 100);
  StateSharer& slow = donor(best, 9);
  donor({msgpack::Map{{{"epoch", 7}}}, {{codec::DType::float32, {0}, false, Slice::uninitialised(0)}}}, 5);
  StateSharer& late = newcomer();
  swarm.fabric().set_link(sim::Swarm::ip(1), sim::Swarm::ip(3), {.latency = 10ms, .bandwidth = 4e5});
  const auto found = download(late);
  ASSERT_TRUE(found) << found.error();
  EXPECT_EQ(found->donor, slow.id());
  expect_same(*found, best);
}

TEST_F(SharedStates, DonorsThatAreSlowAlikeAreNotLeftForEachOther) {
  const auto best = state_with(8, 100);
  donor(best, 9);
  donor(state_with(7, 1), 5);
  StateSharer& late = newcomer();
  for (int i : {1, 2})
    swarm.fabric().set_link(sim::Swarm::ip(static_cast<std::size_t>(i)), sim::Swarm::ip(3),
                            {.latency = 10ms, .bandwidth = 1e5});
  const auto found = download(late);
  ASSERT_TRUE(found) << found.error();
  expect_same(*found, best);
  EXPECT_EQ(found->bytes, kTensors * kTensorBytes) << "nothing came twice";
}

}  // namespace
}  // namespace cohive::averaging
