// COHIVE_WIDE functions are compiled for the vector units there are and chosen at load time; sanitizers do not stand
// the choosing.
#pragma once

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#define COHIVE_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#else
#define COHIVE_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifndef COHIVE_WIDE
#define COHIVE_WIDE
#endif
