#pragma once

#include <cstddef>
#include <cstdint>

namespace orch_ccl {

enum class CombineOp : uint8_t { sum, product, minimum, maximum };
enum class NumberType : uint8_t { float32, float64, bfloat16, int8, uint8, int16, int32, int64 };

// Computes out[i] = sources[0][i] <op> sources[1][i] <op> ... in this order, for `numbers` numbers of `count` sources.
// `out` may be one of the sources. bfloat16 is combined as float32 and rounded once, at the end. Thread-safe.
using Combiner = void (*)(const void* const* sources, int count, void* out, size_t numbers);

// Vector instructions, in ascending order. A combiner gives the same bits with each of them.
enum class SimdLevel : uint8_t { none, avx2, avx512 };

// Returns what this processor supports, limited by ATEN_CPU_CAPABILITY if that is "avx2" or "default".
SimdLevel usable_simd_level();

// The processor must support `simd_level`.
Combiner combiner_for(NumberType type, CombineOp op, SimdLevel simd_level = usable_simd_level());
size_t size_of(NumberType type);

} // namespace orch_ccl
