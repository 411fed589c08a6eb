#include "combiner.h"

namespace orch_ccl {
namespace {

enum class BFloat16 : uint16_t {}; // its bits

#pragma GCC push_options
#pragma GCC optimize("O3")
namespace plain {
#include "combiner_loops.h"
}
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC optimize("O3")
#pragma GCC target("avx2")
namespace avx2 {
#include "combiner_loops.h"
}
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC optimize("O3")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
namespace avx512 {
#include "combiner_loops.h"
}
#pragma GCC pop_options

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

} // namespace

Combiner combiner_for(Number number, Combine by) {
  if (has_avx512())
    return avx512::find(number, by);
  return __builtin_cpu_supports("avx2") ? avx2::find(number, by) : plain::find(number, by);
}

size_t size_of(Number number) {
  switch (number) {
    case Number::int8:
    case Number::uint8: return 1;
    case Number::bfloat16:
    case Number::int16: return 2;
    case Number::float64:
    case Number::int64: return 8;
    default: return 4;
  }
}

} // namespace orch_ccl
