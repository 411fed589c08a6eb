#include "streaming.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <cpuid.h>
#include <emmintrin.h>

namespace orch_ccl {
namespace {

constexpr size_t kLineBytes = 64;

void stream_line(char* to, const char* from) {
  for (size_t at = 0; at < kLineBytes; at += sizeof(__m128i))
    _mm_stream_si128(
        reinterpret_cast<__m128i*>(to + at), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
}

// For shorter copies the startup of the instruction takes longer than the copy.
constexpr size_t kMinStringCopyBytes = 2048;

constexpr unsigned kErms = 1 << 9; // "enhanced rep movsb", of leaf 7 in EBX

bool has_fast_string_copy() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & kErms);
}

} // namespace

void copy_by_route(char* to, const char* from, size_t bytes, Route route) {
  static const bool has_fast_copy = has_fast_string_copy();
  if (route == Route::memory)
    stream(to, from, bytes);
  else if (has_fast_copy && bytes >= kMinStringCopyBytes)
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  else if (bytes > 0)
    std::memcpy(to, from, bytes);
}

void stream(char* to, const char* from, size_t bytes) {
  const size_t head_bytes = std::min(bytes, (kLineBytes - reinterpret_cast<uintptr_t>(to) % kLineBytes) % kLineBytes);
  const size_t lines = (bytes - head_bytes) / kLineBytes * kLineBytes;
  std::memcpy(to, from, head_bytes);
  for (size_t at = head_bytes; at < head_bytes + lines; at += kLineBytes)
    stream_line(to + at, from + at);
  std::memcpy(to + head_bytes + lines, from + head_bytes + lines, bytes - head_bytes - lines);
  _mm_sfence(); // makes the data visible before the caller announces it
}

} // namespace orch_ccl
