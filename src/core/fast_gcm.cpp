#include "fast_gcm.hpp"

#include <algorithm>
#include <stdexcept>

#ifdef COHIVE_HAVE_IPSEC_MB
#include <intel-ipsec-mb.h>
#include <sodium.h>

namespace cohive::crypto {

namespace {

/// The library's table of functions for this processor; null where it would not be faster. Thread-safe to use: GCM
/// keeps nothing in it.
IMB_MGR* manager() noexcept {
  static IMB_MGR* const made = []() -> IMB_MGR* {
    IMB_MGR* fresh = alloc_mb_mgr(0);
    if (!fresh) return nullptr;
    init_mb_mgr_auto(fresh, nullptr);
    if ((fresh->features & IMB_FEATURE_VAES) && (fresh->features & IMB_FEATURE_VPCLMULQDQ)) return fresh;
    free_mb_mgr(fresh);
    return nullptr;
  }();
  return made;
}

/// What a message is worked on with; it holds parts of the key stream.
struct Context {
  gcm_context_data data;
  ~Context() { sodium_memzero(&data, sizeof data); }
};

}  // namespace

struct FastGcm::Keys {
  gcm_key_data data;
};

void FastGcm::KeysDeleter::operator()(Keys* keys) const noexcept {
  sodium_memzero(keys, sizeof *keys);
  delete keys;
}

bool FastGcm::available() noexcept {
  return manager() != nullptr;
}

FastGcm::FastGcm(const Key32& key) : keys_(new Keys) {
  IMB_AES256_GCM_PRE(manager(), key.data(), &keys_->data);
}

void FastGcm::seal(const GcmNonce& nonce, ByteView associated, std::span<const ByteView> parts,
                   std::uint8_t* out) const {
  IMB_MGR* const with = manager();
  Context context;
  IMB_AES256_GCM_INIT(with, &keys_->data, &context.data, nonce.data(), associated.data(), associated.size());
  for (ByteView part : parts) {
    if (part.empty()) continue;
    IMB_AES256_GCM_ENC_UPDATE(with, &keys_->data, &context.data, out, part.data(), part.size());
    out += part.size();
  }
  IMB_AES256_GCM_ENC_FINALIZE(with, &keys_->data, &context.data, out, Aead::kTagSize);
}

bool FastGcm::open(const GcmNonce& nonce, ByteView associated, ByteView sealed, std::uint8_t* out) const {
  const std::size_t size = sealed.size() - Aead::kTagSize;
  std::array<std::uint8_t, Aead::kTagSize> expected, tag;
  std::copy_n(sealed.data() + size, tag.size(), tag.begin());
  Context context;
  IMB_AES256_GCM_DEC(manager(), &keys_->data, &context.data, out, sealed.data(), size, nonce.data(), associated.data(),
                     associated.size(), expected.data(), expected.size());
  return sodium_memcmp(expected.data(), tag.data(), tag.size()) == 0;
}

bool FastGcm::open(const GcmNonce& nonce, MutableBytes sealed, const Aead::Destination& destination) const {
  IMB_MGR* const with = manager();
  const std::size_t size = sealed.size() - Aead::kTagSize;
  std::array<std::uint8_t, Aead::kTagSize> expected;
  Context context;
  IMB_AES256_GCM_INIT(with, &keys_->data, &context.data, nonce.data(), nullptr, 0);
  std::uint8_t* const first = sealed.data();
  IMB_AES256_GCM_DEC_UPDATE(with, &keys_->data, &context.data, first, first, Aead::kFirst);
  std::uint8_t* const rest = destination({first, Aead::kFirst});
  if (size > Aead::kFirst)
    IMB_AES256_GCM_DEC_UPDATE(with, &keys_->data, &context.data, rest ? rest : first + Aead::kFirst,
                              first + Aead::kFirst, size - Aead::kFirst);
  IMB_AES256_GCM_DEC_FINALIZE(with, &keys_->data, &context.data, expected.data(), expected.size());
  return sodium_memcmp(expected.data(), sealed.data() + size, expected.size()) == 0;
}

}  // namespace cohive::crypto

#else

namespace cohive::crypto {

struct FastGcm::Keys {};
void FastGcm::KeysDeleter::operator()(Keys* keys) const noexcept {
  delete keys;
}
bool FastGcm::available() noexcept {
  return false;
}
FastGcm::FastGcm(const Key32&) {
  throw std::logic_error("built without Intel's Multi-Buffer Crypto library");
}
void FastGcm::seal(const GcmNonce&, ByteView, std::span<const ByteView>, std::uint8_t*) const {}
bool FastGcm::open(const GcmNonce&, ByteView, ByteView, std::uint8_t*) const {
  return false;
}
bool FastGcm::open(const GcmNonce&, MutableBytes, const Aead::Destination&) const {
  return false;
}

}  // namespace cohive::crypto

#endif
