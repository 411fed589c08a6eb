#include "streaming.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <cpuid.h>
#include <emmintrin.h>

namespace orch_ccl {
namespace {

constexpr size_t kStreamed = 64;

void stream_line(char* to, const char* from) {
  for (size_t at = 0; at < kStreamed; at += sizeof(__m128i))
    _mm_stream_si128(
        reinterpret_cast<__m128i*>(to + at), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
}

// Below this it takes longer to begin than to copy.
constexpr size_t kStringCopied = 2048;

constexpr unsigned kErms = 1 << 9; // "enhanced rep movsb", of leaf 7 in EBX

bool has_fast_string_copy() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & kErms);
}

} // namespace

void hand_over(char* to, const char* from, size_t bytes, Route route) {
  static const bool fast = has_fast_string_copy();
  if (route == Route::memory)
    stream(to, from, bytes);
  else if (fast && bytes >= kStringCopied)
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  else if (bytes > 0)
    std::memcpy(to, from, bytes);
}

void stream(char* to, const char* from, size_t bytes) {
  const size_t before = std::min(bytes, (kStreamed - reinterpret_cast<uintptr_t>(to) % kStreamed) % kStreamed);
  const size_t lines = (bytes - before) / kStreamed * kStreamed;
  std::memcpy(to, from, before);
  for (size_t at = before; at < before + lines; at += kStreamed)
    stream_line(to + at, from + at);
  std::memcpy(to + before + lines, from + before + lines, bytes - before - lines);
  _mm_sfence(); // whoever is told that it is done sees it
}

} // namespace orch_ccl
