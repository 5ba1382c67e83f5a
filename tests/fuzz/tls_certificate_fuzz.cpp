// Certificates of TLS handshakes, and the extension alone that proves the identity. The first byte says which.
#include "fuzz.hpp"
#include "transport/tls_certificate.hpp"

namespace cohive::fuzz {
namespace {

constexpr double kNow = 1.7e9;

void extension(ByteView der) {
  const auto parsed = transport::parse_signed_key(der);
  if (!parsed) return;
  const auto inside = [der](ByteView part) {
    return part.empty() || (part.data() >= der.data() && part.data() + part.size() <= der.data() + der.size());
  };
  expect(inside(parsed->public_key) && inside(parsed->signature), "both parts are within the extension");
}

}  // namespace

COHIVE_FUZZ_TARGET(tls_certificate)(ByteView input) {
  Input in(input);
  if (in.byte() % 2 != 0) return extension(in.rest());
  const unsigned char* at = in.rest().data();
  const transport::X509Ptr certificate(d2i_X509(nullptr, &at, static_cast<long>(in.rest().size())));
  if (!certificate) return;
  if (const auto key = transport::verify_certificate(*certificate, kNow))
    expect(!key->peer_id().empty(), "a certificate that proves an identity names its peer");
}

}  // namespace cohive::fuzz
