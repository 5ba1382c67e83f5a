// What a newcomer has of a state, piece by piece.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <vector>

#include "averaging/states/state_pieces.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive::averaging {
namespace {

Task<void> occupy(Runtime& runtime, std::shared_future<void> until) {
  co_await runtime.offload([until] { until.wait(); });
}

/// On a pool of one thread, which is busy meanwhile.
Task<void> adopt_beside_other_work(Runtime& runtime, PartialState& partial, Manifest manifest) {
  const auto done = std::make_shared<std::promise<void>>();
  Nursery tasks(runtime, "test");
  tasks.spawn(occupy(runtime, done->get_future().share()), "other work");
  tasks.spawn(partial.adopt(runtime, StateRoot(kRootSize, 'r'), std::move(manifest)), "adopting a state");
  co_await runtime.sleep_for(50ms);
  EXPECT_EQ(partial.bytes(), 0u) << "the loop copies no tensors";
  done->set_value();
  co_await tasks.join();
}

TEST(PartialStates, CopyWhatThisPeerHasOffTheLoop) {
  constexpr std::size_t kBytes = 3 * kPieceBytes;
  std::vector<codec::Tensor> own;
  own.push_back({codec::DType::uint8, {kBytes}, false, Slice::copy_of(Bytes(kBytes, 7))});
  const Slice before = own[0].data;
  PartialState partial(std::move(own));
  Manifest manifest;
  manifest.tensors.push_back({codec::DType::uint8, {kBytes}, false, codec::Codec::none, kBytes, 0});
  manifest.hashes.resize(3);
  manifest.bytes = kBytes;
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  runtime->run(adopt_beside_other_work(*runtime, partial, std::move(manifest)));
  ASSERT_TRUE(partial.complete());
  EXPECT_EQ(partial.bytes(), kBytes);
  const auto tensors = partial.take();
  EXPECT_TRUE(std::ranges::equal(tensors.at(0).data.view(), before.view()));
  EXPECT_NE(tensors.at(0).data.data(), before.data()) << "what the caller has stays";
}

}  // namespace
}  // namespace cohive::averaging
