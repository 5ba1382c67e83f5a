// The Noise handshake. Input: role, then either the other side's raw bytes, or the payload that it says behind a
// correct key exchange: the only way to the code that lies behind the encryption.
#include "transport/noise.hpp"

#include "cohive/core/sim_runtime.hpp"
#include "fuzz.hpp"
#include "transport/memory_connection.hpp"
#include "transport/noise_state.hpp"
#include "transport/raw_stream.hpp"

namespace cohive::fuzz {
namespace {

using namespace transport;
using crypto::X25519KeyPair;

/// Our side's or the other side's.
struct Keys {
  X25519KeyPair static_key, ephemeral;
};

Keys fixed_keys(std::uint8_t number) {
  crypto::Key32 secret{};
  secret.fill(number);
  const auto pair = X25519KeyPair::from_secret(secret);
  secret.fill(static_cast<std::uint8_t>(number + 1));
  return {pair, X25519KeyPair::from_secret(secret)};
}

Task<void> shake(Stream& stream, Role role, Deadline deadline) {
  static const auto identity =
      std::make_shared<NoiseIdentity>(KeyPair::ed25519_from_seed(Bytes(32, 1)), fixed_keys(1).static_key);
  (void)co_await noise_handshake(stream, role, identity, std::nullopt, {{"/yamux/1.0.0"}}, deadline,
                                 fixed_keys(1).ephemeral);
}

/// A message with its length in front.
Bytes framed(ByteView message) {
  Bytes out{static_cast<std::uint8_t>(message.size() >> 8), static_cast<std::uint8_t>(message.size())};
  out.insert(out.end(), message.begin(), message.end());
  return out;
}

/// The other side of the exchange, which keeps to the protocol up to its payload.
class Stranger {
 public:
  explicit Stranger(Keys keys) : keys_(keys) {}
  /// Message 2 in answer to message 1.
  Bytes answer(ByteView first, ByteView payload) {
    hear_ephemeral(first);
    state_.mix_hash({});
    Bytes out = to_bytes(ByteView(keys_.ephemeral.public_));
    state_.mix_hash(out);
    state_.mix_dh(keys_.ephemeral.secret, theirs_);
    append(out, state_.encrypt_and_hash(keys_.static_key.public_));
    state_.mix_dh(keys_.static_key.secret, theirs_);
    append(out, state_.encrypt_and_hash(payload));
    return out;
  }
  Bytes greet() {
    state_.mix_hash(keys_.ephemeral.public_);
    state_.mix_hash({});
    return to_bytes(ByteView(keys_.ephemeral.public_));
  }
  /// Message 3 in answer to message 2.
  Bytes conclude(ByteView second, ByteView payload) {
    hear_ephemeral(second);
    state_.mix_dh(keys_.ephemeral.secret, theirs_);
    const auto sealed_static = second.subspan(32, 48);
    const auto their_static = state_.decrypt_and_hash(sealed_static);
    crypto::Key32 key{};
    std::copy(their_static->begin(), their_static->end(), key.begin());
    state_.mix_dh(keys_.ephemeral.secret, key);
    (void)state_.decrypt_and_hash(second.subspan(80));
    Bytes out = state_.encrypt_and_hash(keys_.static_key.public_);
    state_.mix_dh(keys_.static_key.secret, theirs_);
    append(out, state_.encrypt_and_hash(payload));
    return out;
  }

 private:
  static void append(Bytes& out, const Bytes& more) { out.insert(out.end(), more.begin(), more.end()); }
  void hear_ephemeral(ByteView message) {
    std::copy_n(message.begin(), theirs_.size(), theirs_.begin());
    state_.mix_hash(theirs_);
  }
  Keys keys_;
  noise::SymmetricState state_;
  crypto::Key32 theirs_{};
};

}  // namespace

COHIVE_FUZZ_TARGET(noise)(ByteView bytes) {
  Input input(bytes);
  const int mode = input.byte() % 4;
  const Role role = mode % 2 == 0 ? Role::initiator : Role::responder;
  SimRuntime runtime;
  transport::test::Wire wire(runtime);
  const auto raw = wire.our_end();
  RawStream stream(runtime, *raw);
  TaskGroup tasks(runtime);
  tasks.spawn(shake(stream, role, runtime.after(10s)));
  runtime.run_ready();
  Stranger stranger(fixed_keys(0x40));
  // Longer than a message may be is told by its length alone.
  const ByteView payload = input.rest().first(std::min<std::size_t>(input.rest().size(), 8000));
  if (mode < 2) {
    wire.send(input.rest());
  } else if (role == Role::initiator) {
    wire.send(framed(stranger.answer(ByteView(wire.received()).subspan(2), payload)));
  } else {
    wire.send(framed(stranger.greet()));
    runtime.run_ready();
    wire.send(framed(stranger.conclude(ByteView(wire.received()).subspan(2), payload)));
  }
  runtime.run_ready();
  wire.finish();
  runtime.run_ready();
  expect(tasks.empty(), "a handshake ends with its connection");
}

}  // namespace cohive::fuzz
