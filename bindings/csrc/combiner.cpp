#include "combiner.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <immintrin.h>

namespace orch_ccl {
namespace {

enum class BFloat16 : uint16_t {}; // the bits of a number

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
#include "combiner_bfloat16.h"
}
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC optimize("O3")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
namespace avx512 {
#include "combiner_loops.h"
}
#pragma GCC pop_options

SimdLevel processor_simd_level() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return SimdLevel::avx512;
  return __builtin_cpu_supports("avx2") ? SimdLevel::avx2 : SimdLevel::none;
}

// ATEN_CPU_CAPABILITY is torch's variable; torch itself warns about unknown values.
SimdLevel allowed_simd_level() {
  const char* value = getenv("ATEN_CPU_CAPABILITY");
  const std::string capability = value ? value : "";
  if (capability == "default")
    return SimdLevel::none;
  return capability == "avx2" ? SimdLevel::avx2 : SimdLevel::avx512;
}

} // namespace

SimdLevel usable_simd_level() {
  static const SimdLevel usable = std::min(processor_simd_level(), allowed_simd_level());
  return usable;
}

Combiner combiner_for(NumberType type, CombineOp op, SimdLevel simd_level) {
  switch (simd_level) {
    case SimdLevel::avx512: return avx512::find_combiner(type, op);
    case SimdLevel::avx2:
      return type == NumberType::bfloat16 ? avx2::find_bfloat16_combiner(op) : avx2::find_combiner(type, op);
    case SimdLevel::none: return plain::find_combiner(type, op);
  }
  return nullptr;
}

size_t size_of(NumberType type) {
  switch (type) {
    case NumberType::int8:
    case NumberType::uint8: return 1;
    case NumberType::bfloat16:
    case NumberType::int16: return 2;
    case NumberType::float64:
    case NumberType::int64: return 8;
    default: return 4;
  }
}

} // namespace orch_ccl
