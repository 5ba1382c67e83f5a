// Whether a sanitizer watches the tests: everything takes many times as long then.
#pragma once

#ifndef __has_feature
#define __has_feature(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) || \
    __has_feature(thread_sanitizer)
#define COHIVE_SANITIZER 1
#else
#define COHIVE_SANITIZER 0
#endif

namespace cohive {

inline constexpr bool kSanitized = COHIVE_SANITIZER;

}  // namespace cohive
