// RSA-PSS signatures on records that carry an owner marker. Source: docs/wire/hivemind.md, section 4.2.
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/rsa.h>

#include <deque>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "cohive/core/crypto.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/dht/validation.hpp"

namespace cohive::dht {
namespace {

constexpr std::string_view kSignature = "[signature:";
constexpr std::string_view kAlgorithm = "ssh-rsa";
constexpr int kRsaBits = 2048;
// Larger keys than of 4,096 bits take too long to check; hivemind's have 2,048.
constexpr std::size_t kLeastModulusBytes = 256, kMostModulusBytes = 512;
constexpr std::size_t kCachedKeys = 4096;
constexpr std::size_t kMaxExponentBytes = 4;  // 31 bits, as Go has it; larger ones make a check take milliseconds
// What all keys with the usual exponent, 65537, begin with.
constexpr std::string_view kUsualExponent = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQAB";
constexpr std::size_t kCostOfALongExponent = 4;
constexpr std::size_t kRememberedChecks = 4096;  // in each of two generations

struct Deleter {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(OSSL_PARAM_BLD* builder) const { OSSL_PARAM_BLD_free(builder); }
  void operator()(OSSL_PARAM* params) const { OSSL_PARAM_free(params); }
};
using Pkey = std::shared_ptr<EVP_PKEY>;
using Number = std::unique_ptr<BIGNUM, Deleter>;

void put_ssh(std::string& out, std::string_view part) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(part.size() >> shift));
  out += part;
}
std::optional<std::string_view> take_ssh(std::string_view& rest) {
  if (rest.size() < 4) return std::nullopt;
  std::size_t size = 0;
  for (int i = 0; i < 4; ++i) size = size << 8 | static_cast<std::uint8_t>(rest[static_cast<std::size_t>(i)]);
  if (size > rest.size() - 4) return std::nullopt;
  const auto part = rest.substr(4, size);
  rest.remove_prefix(4 + size);
  return part;
}

std::string mpint(EVP_PKEY* key, const char* name) {
  BIGNUM* raw = nullptr;
  if (!EVP_PKEY_get_bn_param(key, name, &raw)) throw std::runtime_error("RSA key without " + std::string(name));
  const Number number(raw);
  std::string bytes(static_cast<std::size_t>(BN_num_bytes(raw)), '\0');
  BN_bn2bin(raw, reinterpret_cast<unsigned char*>(bytes.data()));
  if (!bytes.empty() && (bytes[0] & 0x80)) bytes.insert(bytes.begin(), '\0');  // positive
  return bytes;
}

/// "ssh-rsa <base64>", without a comment.
std::string openssh_of(EVP_PKEY* key) {
  std::string blob;
  put_ssh(blob, kAlgorithm);
  put_ssh(blob, mpint(key, OSSL_PKEY_PARAM_RSA_E));
  put_ssh(blob, mpint(key, OSSL_PKEY_PARAM_RSA_N));
  return std::string(kAlgorithm) + " " + crypto::base64_encode(as_bytes(blob));
}

/// Characters of "ssh-rsa <base64>" for a modulus of so many bytes and the longest exponent.
constexpr std::size_t owner_size(std::size_t modulus) {
  return 8 + (3 * 4 + kAlgorithm.size() + kMaxExponentBytes + modulus + 1 + 2) / 3 * 4;
}

// A shorter text is no key of RSA-2048, and no base64 of a signature by one.
constexpr std::size_t kShortestOwner = 8 + (3 * 4 + kAlgorithm.size() + kLeastModulusBytes) * 4 / 3;
constexpr std::size_t kShortestSignature = kLeastModulusBytes * 4 / 3;

Pkey from_openssh(std::string_view text) {
  if (!text.starts_with("ssh-rsa ")) return nullptr;
  text.remove_prefix(8);
  const auto base64 = text.substr(0, text.find(' '));
  if (8 + base64.size() > owner_size(kMostModulusBytes)) return nullptr;
  const auto blob = crypto::base64_decode(base64);
  if (!blob) return nullptr;
  std::string_view rest = as_text(*blob);
  const auto name = take_ssh(rest), e = take_ssh(rest);
  auto n = take_ssh(rest);
  if (!name || *name != kAlgorithm || !e || !n || !rest.empty() || e->size() > kMaxExponentBytes) return nullptr;
  if (n->starts_with('\0')) n->remove_prefix(1);  // it is positive
  if (n->size() < kLeastModulusBytes || n->size() > kMostModulusBytes) return nullptr;
  const auto number = [](std::string_view bytes) {
    return Number(
        BN_bin2bn(reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()), nullptr));
  };
  const Number exponent = number(*e), modulus = number(*n);
  std::unique_ptr<OSSL_PARAM_BLD, Deleter> builder(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, modulus.get());
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, exponent.get());
  std::unique_ptr<OSSL_PARAM, Deleter> params(OSSL_PARAM_BLD_to_param(builder.get()));
  std::unique_ptr<EVP_PKEY_CTX, Deleter> context(EVP_PKEY_CTX_new_from_name(nullptr, "RSA", nullptr));
  EVP_PKEY* key = nullptr;
  if (EVP_PKEY_fromdata_init(context.get()) <= 0 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) <= 0)
    return nullptr;
  return Pkey(key, Deleter());
}

/// Parsing a key costs as much as using it; the most recent ones are kept, for all nodes of the process.
class KeyCache {
 public:
  static KeyCache& of_process() {
    static KeyCache& cache = *new KeyCache;  // for good: threads of a program that ends may still validate
    return cache;
  }
  /// Null for what is no key.
  Pkey key_of(std::string_view text) {
    const std::string owned(text);
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = known_.find(owned); found != known_.end()) return found->second;
    }
    Pkey parsed = from_openssh(text);
    if (!parsed) return nullptr;
    const std::lock_guard lock(mutex_);
    if (known_.size() >= kCachedKeys) {
      known_.erase(order_.front());
      order_.pop_front();
    }
    if (known_.emplace(owned, parsed).second) order_.push_back(owned);
    return parsed;
  }

 private:
  std::mutex mutex_;  // validation also runs on worker threads
  std::unordered_map<std::string, Pkey> known_;
  std::deque<std::string> order_;  // oldest first
};

/// A "[<prefix>content]" in a text.
struct Bracketed {
  std::size_t begin, end;  // of the whole
  std::string_view content;
};

/// All of them, left to right without overlap. The content is not empty and has no newline.
std::vector<Bracketed> bracketed(std::string_view text, std::string_view prefix) {
  std::vector<Bracketed> found;
  for (std::size_t at = text.find(prefix); at != std::string_view::npos; at = text.find(prefix, at)) {
    const std::size_t start = at + prefix.size();
    const bool empty = start < text.size() && text[start] == '\n';
    const std::size_t close = empty ? start : text.find_first_of("]\n", start + 1);
    if (close == std::string_view::npos) break;
    // None that begins before a newline goes on behind it: each part of the text is looked at once.
    if (text[close] == ']') found.push_back({at, close + 1, text.substr(start, close - start)});
    at = close + 1;
  }
  return found;
}

/// The owner named by key and subkey: empty when the record is not protected, nullopt when they name several.
std::optional<std::string_view> owner_of(const Record& record) {
  std::string_view owner;
  for (const std::string* part : {&record.key, &record.subkey})
    for (const auto& marker : bracketed(*part, kOwnerMarker)) {
      if (!owner.empty() && owner != marker.content) return std::nullopt;
      owner = marker.content;
    }
  return owner;
}

std::string without(std::string_view text, const std::vector<Bracketed>& parts) {
  std::string result;
  std::size_t at = 0;
  for (const auto& part : parts) {
    result += text.substr(at, part.begin - at);
    at = part.end;
  }
  result += text.substr(at);
  return result;
}

std::string signed_bytes(const Record& record, std::string stripped_value) {
  using namespace msgpack;
  return encode(Tuple{{Bin{record.key}, Bin{record.subkey}, Bin{std::move(stripped_value)}, record.expiration}});
}

bool set_pss(EVP_PKEY_CTX* context, int salt) {
  return EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PSS_PADDING) > 0 &&
         EVP_PKEY_CTX_set_rsa_mgf1_md(context, EVP_sha256()) > 0 && EVP_PKEY_CTX_set_rsa_pss_saltlen(context, salt) > 0;
}

}  // namespace

struct RsaSignatureValidator::Impl {
  explicit Impl(Pkey pair)
      : key(std::move(pair)), owner(openssh_of(key.get())), marker(std::string(kOwnerMarker) + owner + "]") {}

  std::string sign(const std::string& bytes) const {
    std::unique_ptr<EVP_MD_CTX, Deleter> context(EVP_MD_CTX_new());
    EVP_PKEY_CTX* options = nullptr;
    std::size_t size = static_cast<std::size_t>(EVP_PKEY_get_size(key.get()));
    Bytes signature(size);
    const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
    if (EVP_DigestSignInit(context.get(), &options, EVP_sha256(), nullptr, key.get()) <= 0 ||
        !set_pss(options, RSA_PSS_SALTLEN_MAX) ||
        EVP_DigestSign(context.get(), signature.data(), &size, data, bytes.size()) <= 0)
      throw std::runtime_error("RSA-PSS signing failed");
    signature.resize(size);
    return crypto::base64_encode(signature);
  }

  bool verify(std::string_view public_key, const std::string& bytes, ByteView signature) const {
    const Pkey theirs = key_for(public_key, signature);
    return theirs && is_signature(theirs.get(), bytes, signature);
  }

  /// Null where the signature cannot be one of that key.
  Pkey key_for(std::string_view public_key, ByteView signature) const {
    const Pkey theirs = KeyCache::of_process().key_of(public_key);
    return theirs && signature.size() == static_cast<std::size_t>(EVP_PKEY_get_size(theirs.get())) ? theirs : nullptr;
  }

  /// Whether a record is signed, which it remembers: nodes send each other the same ones again and again.
  bool verify_once(std::string_view public_key, const std::string& bytes, ByteView signature) const {
    const Pkey theirs = key_for(public_key, signature);
    if (!theirs) return false;
    std::string all;
    for (const std::string_view part : {public_key, std::string_view(bytes), as_text(signature)}) put_ssh(all, part);
    const auto digest = crypto::sha256(as_bytes(all));
    const std::string name(as_text(digest));
    {
      const std::lock_guard lock(mutex);
      for (const auto* generation : {&checked, &checked_before})
        if (const auto found = generation->find(name); found != generation->end()) return found->second;
    }
    const bool valid = is_signature(theirs.get(), bytes, signature);
    const std::lock_guard lock(mutex);
    if (checked.size() >= kRememberedChecks) {
      checked_before = std::move(checked);
      checked.clear();
    }
    checked.emplace(name, valid);
    ++checks;
    return valid;
  }

  static bool is_signature(EVP_PKEY* theirs, const std::string& bytes, ByteView signature) {
    std::unique_ptr<EVP_MD_CTX, Deleter> context(EVP_MD_CTX_new());
    EVP_PKEY_CTX* options = nullptr;
    const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
    const bool valid = EVP_DigestVerifyInit(context.get(), &options, EVP_sha256(), nullptr, theirs) > 0 &&
                       set_pss(options, RSA_PSS_SALTLEN_AUTO) &&
                       EVP_DigestVerify(context.get(), signature.data(), signature.size(), data, bytes.size()) > 0;
    if (!valid) ERR_clear_error();
    return valid;
  }

  Pkey key;
  std::string owner, marker;
  mutable std::mutex mutex;                                               // validation also runs on worker threads
  mutable std::unordered_map<std::string, bool> checked, checked_before;  // by digest of key, content and signature
  mutable std::size_t checks = 0;
};

namespace {
Pkey generate() {
  EVP_PKEY* key = EVP_RSA_gen(kRsaBits);
  if (!key) throw std::runtime_error("RSA key generation failed");
  return Pkey(key, Deleter());
}
Pkey from_pkcs1(ByteView der) {
  const unsigned char* at = der.data();
  Pkey key(d2i_PrivateKey(EVP_PKEY_RSA, nullptr, &at, static_cast<long>(der.size())), Deleter());
  if (!key) throw std::invalid_argument("not a PKCS#1 RSA private key");
  return key;
}
}  // namespace

RsaSignatureValidator::RsaSignatureValidator() : impl_(std::make_unique<Impl>(generate())) {}
RsaSignatureValidator::RsaSignatureValidator(ByteView pkcs1_der)
    : impl_(std::make_unique<Impl>(from_pkcs1(pkcs1_der))) {}
RsaSignatureValidator::~RsaSignatureValidator() = default;

const std::string& RsaSignatureValidator::ownership_marker() const {
  return impl_->marker;
}

const std::string& RsaSignatureValidator::public_key() const {
  return impl_->owner;
}

std::string RsaSignatureValidator::sign(const std::string& bytes) const {
  return impl_->sign(bytes);
}

bool RsaSignatureValidator::verify(std::string_view public_key, const std::string& bytes,
                                   std::string_view signature) const {
  const auto raw = crypto::base64_decode(signature);
  return raw && impl_->verify(public_key, bytes, *raw);
}

bool RsaSignatureValidator::validate(const Record& record) const {
  const auto owner = owner_of(record);
  if (!owner) return false;
  if (owner->empty()) return true;
  const auto signatures = bracketed(record.value, kSignature);
  if (signatures.size() != 1 || signatures.front().content.size() < kShortestSignature) return false;
  const auto signature = crypto::base64_decode(signatures.front().content);
  return signature && impl_->verify_once(*owner, signed_bytes(record, without(record.value, signatures)), *signature);
}

std::size_t RsaSignatureValidator::cost(const Record& record) const {
  const auto owner = owner_of(record);
  // Those of keys that are too small or too large are refused without a check, as are values without a signature.
  if (!owner || owner->size() < kShortestOwner || owner->size() > owner_size(kMostModulusBytes) ||
      record.value.size() < kShortestSignature)
    return 0;
  const std::size_t squares = owner->size() <= owner_size(kLeastModulusBytes)          ? 1
                              : owner->size() <= owner_size(kMostModulusBytes * 3 / 4) ? 3
                                                                                       : 4;
  return squares * (owner->starts_with(kUsualExponent) ? 1 : kCostOfALongExponent) + RecordValidator::cost(record);
}

std::size_t RsaSignatureValidator::checks() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->checks;
}

std::string RsaSignatureValidator::sign_value(const Record& record) const {
  const auto ours = [this](const std::string& part) { return part.find(impl_->marker) != std::string::npos; };
  if (!ours(record.key) && !ours(record.subkey)) return record.value;
  return record.value + std::string(kSignature) + impl_->sign(signed_bytes(record, record.value)) + "]";
}

std::string RsaSignatureValidator::strip_value(const Record& record) const {
  const auto owner = owner_of(record);
  if (owner && owner->empty()) return record.value;  // not protected: whatever looks like a signature is content
  return without(record.value, bracketed(record.value, kSignature));
}

Task<std::shared_ptr<RsaSignatureValidator>> make_rsa_validator(Runtime& runtime) {
  co_return co_await runtime.offload([] { return std::make_shared<RsaSignatureValidator>(); });
}

bool RsaSignatureValidator::merge_with(const RecordValidator& other) {
  return dynamic_cast<const RsaSignatureValidator*>(&other) != nullptr;  // the first key keeps signing
}

}  // namespace cohive::dht
