// Included by combiner.cpp in namespace avx2, under `#pragma GCC target("avx2")`. Written by hand because GCC's
// vectorised code for the bfloat16 loop of combiner_loops.h has less than half of this speed. The results are the same
// bits, including NaN.

constexpr size_t kNumbersPerStep = 16; // one register of bfloat16 numbers is widened to two of eight floats
constexpr int kOddHalvesMask = 0b10101010; // selects the upper 16 bits of each 32-bit lane

inline __m256 widen_even(__m256i values) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(values, 16));
}

inline __m256 widen_odd(__m256i values) {
  return _mm256_castsi256_ps(_mm256_and_si256(values, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Rounds to nearest, ties to even. The result is in the upper half of each lane.
inline __m256i round_to_bfloat16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

inline __m256i replace_nan(__m256i sums, __m256 values) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  return _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(sums), nan, _mm256_cmp_ps(values, values, _CMP_UNORD_Q)));
}

inline __m256i narrow(__m256 even, __m256 odd) {
  __m256i low = round_to_bfloat16(even), high = round_to_bfloat16(odd);
  if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(even, odd, _CMP_UNORD_Q)) != 0, false)) {
    low = replace_nan(low, even);
    high = replace_nan(high, odd);
  }
  return _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, kOddHalvesMask);
}

template <CombineOp op>
void combine_bfloat16(const void* const* sources, int count, void* out, size_t numbers) {
  const auto* const* inputs = reinterpret_cast<const BFloat16* const*>(sources);
  auto* output = static_cast<BFloat16*>(out);
  const auto load = [&](int source, size_t offset) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(inputs[source] + offset));
  };
  size_t offset = 0;
  for (; offset + kNumbersPerStep <= numbers; offset += kNumbersPerStep) {
    const __m256i first = load(0, offset);
    __m256 even = widen_even(first), odd = widen_odd(first);
    for (int source = 1; source < count; ++source) {
      const __m256i values = load(source, offset);
      even = op == CombineOp::sum ? _mm256_add_ps(even, widen_even(values)) : _mm256_mul_ps(even, widen_even(values));
      odd = op == CombineOp::sum ? _mm256_add_ps(odd, widen_odd(values)) : _mm256_mul_ps(odd, widen_odd(values));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(output + offset), narrow(even, odd));
  }
  if (offset < numbers)
    combine_many<op, BFloat16>(inputs, count, offset, output + offset, numbers - offset);
}

// MIN and MAX of bfloat16 are those of integers; see Reduction::by_order.
inline Combiner find_bfloat16_combiner(CombineOp op) {
  return op == CombineOp::sum ? combine_bfloat16<CombineOp::sum> : combine_bfloat16<CombineOp::product>;
}
