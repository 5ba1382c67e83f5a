#include "errors.hpp"

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "cohive/core/errors.hpp"
#include "cohive/core/version.hpp"
#include "cohive/dht/errors.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::c {
namespace {

std::string& sentence_of_thread() {
  thread_local std::string sentence;
  return sentence;
}

constexpr const char* kNames[] = {
    "ok",        "pending",      "invalid_argument", "timeout",        "cancelled",      "closed",
    "not_found", "unreachable",  "refused",          "invalid_record", "limit_exceeded", "in_use",
    "io",        "unauthorized", "forked",           "failed",         "internal"};

}  // namespace

std::int32_t code_of(const Error& error) noexcept {
  static const std::pair<std::error_code, std::int32_t> kCodes[] = {
      {cohive::Errc::timeout, COHIVE_TIMEOUT},
      {cohive::Errc::cancelled, COHIVE_CANCELLED},
      {cohive::Errc::closed, COHIVE_CLOSED},
      {cohive::Errc::malformed, COHIVE_INVALID_ARGUMENT},
      {cohive::Errc::limit_exceeded, COHIVE_LIMIT_EXCEEDED},
      {cohive::Errc::invalid_argument, COHIVE_INVALID_ARGUMENT},
      {cohive::Errc::io, COHIVE_IO},
      {cohive::Errc::not_found, COHIVE_NOT_FOUND},
      {cohive::Errc::internal, COHIVE_INTERNAL},
      {cohive::Errc::in_use, COHIVE_IN_USE},
      {dht::Errc::bootstrap_failed, COHIVE_UNREACHABLE},
      {dht::Errc::closed, COHIVE_CLOSED},
      {dht::Errc::unauthorized, COHIVE_UNAUTHORIZED},
      {dht::Errc::not_found, COHIVE_NOT_FOUND},
      {dht::Errc::unreachable, COHIVE_UNREACHABLE},
      {dht::Errc::record_refused, COHIVE_REFUSED},
      {dht::Errc::record_invalid, COHIVE_INVALID_RECORD},
      {p2p::Errc::missing_peer_id, COHIVE_INVALID_ARGUMENT},
      {p2p::Errc::bootstrap_failed, COHIVE_UNREACHABLE},
      {p2p::Errc::host_closed, COHIVE_CLOSED},
      {p2p::Errc::identity_in_use, COHIVE_IN_USE},
      {transport::Errc::address_in_use, COHIVE_IN_USE},
      {transport::Errc::refused, COHIVE_UNREACHABLE},
      {transport::Errc::unreachable, COHIVE_UNREACHABLE},
      {transport::Errc::address_unsupported, COHIVE_INVALID_ARGUMENT},
  };
  for (const auto& [code, ours] : kCodes)
    if (error.code() == code) return ours;
  return COHIVE_FAILED;
}

std::int32_t fail(std::int32_t code, std::string sentence) noexcept {
  sentence_of_thread() = std::move(sentence);
  return code;
}

std::int32_t fail_by_exception() noexcept {
  try {
    throw;
  } catch (const ErrorException& exception) {
    return fail(code_of(exception.error()), exception.what());
  } catch (const std::invalid_argument& exception) {
    return fail(COHIVE_INVALID_ARGUMENT, exception.what());
  } catch (const std::bad_alloc&) {
    return fail(COHIVE_LIMIT_EXCEEDED, "there is no memory left");
  } catch (const std::exception& exception) {
    return fail(COHIVE_INTERNAL, exception.what());
  } catch (...) {
    return fail(COHIVE_INTERNAL, "an unknown exception");
  }
}

void refuse(std::string sentence) {
  throw std::invalid_argument(sentence);
}

void give(cohive_bytes* out, std::string_view bytes) {
  there(out, "the struct for the bytes") = {nullptr, 0};
  out->data = static_cast<std::uint8_t*>(std::malloc(bytes.size() + 1));  // never of size 0
  if (!out->data) throw std::bad_alloc();
  if (!bytes.empty()) std::memcpy(out->data, bytes.data(), bytes.size());
  out->data[bytes.size()] = 0;
  out->size = bytes.size();
}

}  // namespace cohive::c

using namespace cohive::c;

std::int32_t cohive_abi_version(void) {
  return COHIVE_ABI_VERSION;
}

const char* cohive_version(void) {
  static const std::string text(cohive::version());
  return text.c_str();
}

const char* cohive_revision(void) {
  static const std::string text(cohive::revision());
  return text.c_str();
}

const char* cohive_last_error(void) {
  return sentence_of_thread().c_str();
}

const char* cohive_code_name(std::int32_t code) {
  const bool known = code >= 0 && static_cast<std::size_t>(code) < std::size(kNames);
  return known ? kNames[code] : "unknown";
}

void cohive_bytes_free(cohive_bytes* bytes) {
  if (!bytes) return;
  std::free(bytes->data);
  *bytes = {nullptr, 0};
}
