#include "combiner.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <immintrin.h>

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

Vectors processor_vectors() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return Vectors::avx512;
  return __builtin_cpu_supports("avx2") ? Vectors::avx2 : Vectors::none;
}

// torch's own variable, with torch's values. torch itself warns of a value that it does not know.
Vectors allowed_vectors() {
  const char* value = getenv("ATEN_CPU_CAPABILITY");
  const std::string capability = value ? value : "";
  if (capability == "default")
    return Vectors::none;
  return capability == "avx2" ? Vectors::avx2 : Vectors::avx512;
}

} // namespace

Vectors usable_vectors() {
  static const Vectors usable = std::min(processor_vectors(), allowed_vectors());
  return usable;
}

Combiner combiner_for(Number number, Combine by, Vectors vectors) {
  switch (vectors) {
    case Vectors::avx512: return avx512::find(number, by);
    case Vectors::avx2: return number == Number::bfloat16 ? avx2::find_bfloat16(by) : avx2::find(number, by);
    case Vectors::none: return plain::find(number, by);
  }
  return nullptr;
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
