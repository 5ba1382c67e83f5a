// Signed peer records, as identify carries them.
#include "cohive/core/signed_record.hpp"

#include "fuzz.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(signed_record)(ByteView input) {
  const auto record = open_signed_peer_record(input);
  if (!record) return;
  expect(!record->peer.empty(), "a record that opens names its peer");
  for (const auto& address : record->addresses) (void)address.text();
}

}  // namespace cohive::fuzz
