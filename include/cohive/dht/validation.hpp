/// \file
/// Record validators: which peer may write which record. Source: docs/wire/hivemind.md, section 4.
/// Threads: const members may run on several worker threads at once (checking many signatures leaves the loop); the
/// others run on the loop thread before or between those, never at the same time as a const member of the same object
/// unless that object says so.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cohive/core/task.hpp"
#include "cohive/dht/dht_id.hpp"

namespace cohive::dht {

/// A record as validators see it.
struct Record {
  std::string key;        ///< 20-byte key id
  std::string subkey;     ///< tag bytes: c0 for a regular value, else the msgpack of the subkey
  std::string value;      ///< serialised value, with signature suffix if any
  double expiration = 0;  ///< Unix seconds
};

/// Says which records nodes may hold, and signs or wraps their values.
class RecordValidator {
 public:
  /// Bytes of a value that take as long to look at as the check of an RSA-2048 signature takes.
  static constexpr std::size_t kBytesOfACheck = 16 * 1024;
  virtual ~RecordValidator() = default;
  /// Tells whether a node may hold the record: true for records that are none of this validator's business.
  virtual bool validate(const Record& record) const = 0;
  /// How long validate() takes with such a record, in checks of an RSA-2048 signature (30 microseconds), rounded down.
  /// Peers that store such records are charged for it; of the entries of a reply those that cost most may be left out.
  virtual std::size_t cost(const Record& record) const { return record.value.size() / kBytesOfACheck; }
  /// The value to store: with the signature appended when this validator signs such records.
  virtual std::string sign_value(const Record& record) const { return record.value; }
  /// The value without what sign_value appended.
  virtual std::string strip_value(const Record& record) const { return record.value; }
  /// Validators are ordered by ascending priority: sign ascending, validate and strip descending.
  virtual int priority() const { return 0; }
  /// True when `other` was absorbed into this one and need not be added.
  virtual bool merge_with(const RecordValidator& other) {
    (void)other;
    return false;
  }
};

/// Makes a validator with a new key on a worker thread.
Task<std::shared_ptr<class RsaSignatureValidator>> make_rsa_validator(Runtime& runtime);

/// Keys and subkeys of owners contain this: see RsaSignatureValidator::ownership_marker().
inline constexpr std::string_view kOwnerMarker = "[owner:";

/// Protects records whose key or subkey carries "[owner:ssh-rsa ...]" by RSA-PSS signatures (section 4.2).
class RsaSignatureValidator final : public RecordValidator {
 public:
  /// Generates an RSA-2048 key (tens of milliseconds: not on a busy loop).
  RsaSignatureValidator();
  /// \param pkcs1_der  a private key as in an RSA identity file; throws std::invalid_argument when malformed
  explicit RsaSignatureValidator(ByteView pkcs1_der);
  ~RsaSignatureValidator() override;
  /// "[owner:ssh-rsa AAAA...]": put it into keys or subkeys to own them.
  const std::string& ownership_marker() const;
  /// "ssh-rsa AAAA...", and the base64 RSA-PSS signature of any bytes by the key that belongs to it.
  const std::string& public_key() const;
  /// Returns the base64 RSA-PSS signature of `bytes` by this key.
  std::string sign(const std::string& bytes) const;
  /// Whether `signature` (base64) is that of `public_key` ("ssh-rsa AAAA...").
  bool verify(std::string_view public_key, const std::string& bytes, std::string_view signature) const;

  /// Tells whether the signature is that of the owner whom the key or subkey names; true where they name none.
  /// Keys have 2,048 to 4,096 bits. What was found is remembered for the next thousands of records.
  bool validate(const Record& record) const override;
  std::size_t cost(const Record& record) const override;
  std::string sign_value(const Record& record) const override;
  std::string strip_value(const Record& record) const override;
  /// How many signatures were checked, without those that were remembered.
  std::size_t checks() const;
  int priority() const override { return 10; }
  bool merge_with(const RecordValidator& other) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::dht
