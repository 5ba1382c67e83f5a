#include "averaging/states/manifest.hpp"

#include <gtest/gtest.h>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "core/detail/proto_fields.hpp"

namespace cohive::averaging {
namespace {

using namespace wire_format;

constexpr std::uint64_t kMuch = std::uint64_t{1} << 40;

codec::Tensor tensor(codec::DType dtype, codec::Shape shape) {
  const std::uint64_t values = *codec::element_count(shape);
  return {dtype, std::move(shape), false, Slice::copy_of(Bytes(values * codec::size_of(dtype), 1))};
}

Result<Manifest> build(SharedState state, codec::Compression compression = {}) {
  ManifestBuilder builder(std::make_shared<const SharedState>(std::move(state)), nullptr, compression);
  for (;;) {
    auto more = builder.describe();
    if (!more) return more.error();
    if (!*more) break;
  }
  if (auto hashed = builder.hash(0, builder.pieces()); !hashed) return hashed.error();
  return builder.take();
}

SharedState example() {
  return {
      msgpack::Map{{{"epoch", 3}}},
      {tensor(codec::DType::float32, {100, 1000}), tensor(codec::DType::float32, {0}), tensor(codec::DType::int64, {}),
       tensor(codec::DType::uint8, {2, 131'072}), tensor(codec::DType::float32, {3, 0})}};
}

TEST(Manifest, SaysWhatTheStateConsistsOf) {
  const auto built = build(example()).value();
  const auto parsed = parse_manifest(as_bytes(encode_manifest(built)), kMuch).value();
  EXPECT_EQ(parsed.metadata, msgpack::encode(example().metadata));
  EXPECT_EQ(parsed.tensors, built.tensors);
  EXPECT_EQ(parsed.hashes, built.hashes);
  EXPECT_EQ(parsed.bytes, 400'000u + 8 + 262'144);
  ASSERT_EQ(parsed.hashes.size(), 4u + 1 + 2);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < parsed.hashes.size(); ++i) bytes += parsed.bytes_of(parsed.piece(i));
  EXPECT_EQ(bytes, parsed.bytes) << "pieces cover every byte once";
  EXPECT_EQ(parsed.piece(3).tensor, 0u);
  EXPECT_EQ(parsed.piece(3).values, 100'000u - 3 * 32'768);
  EXPECT_EQ(parsed.piece(4).tensor, 2u) << "empty tensors have no pieces";
  EXPECT_EQ(parsed.piece(6).first, 131'072u);
}

TEST(Manifest, StatisticsTravelAsTheyAreUnlessARuleByRoleOrKeyNamesThem) {
  using codec::Codec, codec::Compression, codec::Role;
  SharedState state{msgpack::Map{{{"epoch", 3}}},
                    {tensor(codec::DType::float32, {8}), tensor(codec::DType::float32, {8})}};
  state.infos = {{std::uint64_t{0}, {8}, codec::DType::float32, Role::parameter},
                 {std::uint64_t{1}, {8}, codec::DType::float32, Role::optimizer}};
  const auto codecs = [&](const Compression& compression) {
    const auto built = build(state, compression).value();
    return std::pair(built.tensors[0].codec, built.tensors[1].codec);
  };
  const auto by_key = Compression::per_tensor(std::vector<Compression>{Codec::float16, Codec::float16});
  const std::pair exact(Codec::float16, Codec::none), named(Codec::float16, Codec::float16);
  EXPECT_EQ(codecs(Codec::float16), exact);
  EXPECT_EQ(codecs(Compression::size_adaptive(1, Codec::none, Codec::float16)), exact);
  EXPECT_EQ(codecs(Compression::role_adaptive({.parameter = Codec::float16}, Codec::uniform8)), exact);
  EXPECT_EQ(codecs(Compression::role_adaptive({.optimizer = Codec::float16}, Codec::float16)), named);
  EXPECT_EQ(codecs(by_key), named);
  EXPECT_EQ(codecs(Compression::size_adaptive(1, Codec::none, by_key)), named);
  state.infos.clear();
  EXPECT_EQ(codecs(Codec::float16), named) << "nothing says what they are";
}

TEST(Manifest, EqualStatesHaveEqualRootsAndOthersDoNot) {
  const auto root = [](SharedState state, codec::Compression compression = {}) {
    return root_of(as_bytes(encode_manifest(build(std::move(state), compression).value())));
  };
  EXPECT_EQ(root(example()), root(example()));
  auto other = example();
  other.tensors[3].data.mutable_data()[262'143] = 2;
  EXPECT_NE(root(example()), root(other));
  auto shape = example();
  shape.tensors[0].shape = {1000, 100};
  EXPECT_NE(root(example()), root(shape));
  auto metadata = example();
  metadata.metadata = msgpack::Map{{{"epoch", 4}}};
  EXPECT_NE(root(example()), root(metadata));
  EXPECT_NE(root(example()), root(example(), codec::Codec::float16));
}

TEST(Manifest, AStateThatDoesNotFitItselfIsNotShared) {
  auto state = example();
  state.tensors[0].shape = {99, 1000};
  EXPECT_EQ(build(state).error(), make_error_code(Errc::bad_state));
  state = example();
  state.infos.resize(2);
  EXPECT_EQ(build(state).error(), make_error_code(Errc::bad_state));
}

TEST(Manifest, HostileOnesAreRefused) {
  const auto entry = [](std::string_view dtype, codec::Shape shape, int compression = 0) {
    TensorView view;
    view.dtype = dtype;
    view.shape = std::move(shape);
    view.compression = compression;
    return tensor_tail(view);
  };
  const auto manifest = [](std::size_t hashes, const std::vector<std::string>& tensors) {
    std::string out;
    put_bytes(out, 1, "m");
    put_bytes(out, 2, std::string(32 * hashes, 'h'));
    for (const auto& tensor : tensors) put_bytes(out, 3, tensor);
    return out;
  };
  const auto error = [](const std::string& bytes, std::uint64_t max_bytes = kMuch) {
    const auto parsed = parse_manifest(as_bytes(bytes), max_bytes);
    return parsed ? std::error_code() : parsed.error().code();
  };
  const auto bad = make_error_code(cohive::Errc::malformed), much = make_error_code(cohive::Errc::limit_exceeded);
  ASSERT_EQ(error(manifest(1, {entry("float32", {8})})), std::error_code());
  EXPECT_EQ(error(""), bad);
  EXPECT_EQ(error(manifest(0, {})), bad) << "of nothing";
  EXPECT_EQ(error(manifest(0, {entry("float32", {8})})), bad) << "a hash too few";
  EXPECT_EQ(error(manifest(2, {entry("float32", {8})})), bad) << "a hash too many";
  EXPECT_EQ(error(manifest(1, {entry("float32", {8})}) + '\x22'), bad) << "cut off";
  EXPECT_EQ(error(manifest(1, {entry("float31", {8})})), bad);
  EXPECT_EQ(error(manifest(1, {entry("float32", {8}, 77)})), bad);
  EXPECT_EQ(error(manifest(1, {entry("int64", {8}, 2)})), bad) << "integers in halves";
  EXPECT_EQ(error(manifest(1, {entry("float32", {65536, 65536, 65536})})), bad) << "more than 2^40 values";
  EXPECT_EQ(error(manifest(1, {entry("float32", {1u << 20, 1u << 20})})), much) << "more pieces than hashes fit";
  EXPECT_EQ(error(manifest(1, {entry("float32", {8})}), 31), much) << "more than the caller allows";
  EXPECT_EQ(error(manifest(1, std::vector<std::string>(kMaxManifestTensors + 1, entry("float32", {0})))), much);
  EXPECT_EQ(error(std::string(kMaxManifestBytes + 1, 0)), much);
}

}  // namespace
}  // namespace cohive::averaging
