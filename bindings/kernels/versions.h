#pragma once

#include <ATen/Context.h>

#include "threefry.h"

// Versions of a loop for each register width; which one runs depends on what torch uses, so that ATEN_CPU_CAPABILITY
// limits it. A loop is a function of a range, and is inlined: a lambda with the attribute always_inline.
namespace orch_versions {

inline bool has_avx512() {
  static const bool result = at::get_cpu_capability() == "AVX512";
  return result;
}

inline bool has_avx2() {
  static const bool result = has_avx512() || at::get_cpu_capability() == "AVX2";
  return result;
}

#ifdef __x86_64__
template <typename Loop>
__attribute__((target("avx2,fma"))) void run_avx2(const Loop& loop, int64_t first, int64_t last) {
  loop(first, last);
}

template <typename Loop>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"))) void run_avx512(
    const Loop& loop, int64_t first, int64_t last) {
  loop(first, last);
}
#endif

// Runs the loop for a range on this thread.
template <typename Loop>
void run(const Loop& loop, int64_t first, int64_t last) {
#ifdef __x86_64__
  if (has_avx512())
    return run_avx512(loop, first, last);
  if (has_avx2())
    return run_avx2(loop, first, last);
#endif
  loop(first, last);
}

} // namespace orch_versions
