#pragma once

#include <cstddef>
#include <cstdint>

namespace orch_ccl {

enum class Combine : uint8_t { sum, product, minimum, maximum };
enum class Number : uint8_t { float32, float64, bfloat16, int8, uint8, int16, int32, int64 };

// out[i] = sources[0][i] <op> sources[1][i] <op> ..., in this order. `out` may be one of the
// sources. bfloat16 is combined as float32, and rounded once, at the end.
using Combiner = void (*)(const void* const* sources, int count, void* out, size_t numbers);

// Vector instructions, from the least to the most. With all of them a combiner gives the same bits.
enum class Vectors : uint8_t { none, avx2, avx512 };

// What this processor has, or less if ATEN_CPU_CAPABILITY is "avx2" or "default".
Vectors usable_vectors();

// Needs a processor that has `vectors`.
Combiner combiner_for(Number number, Combine by, Vectors vectors = usable_vectors());
size_t size_of(Number number);

} // namespace orch_ccl
