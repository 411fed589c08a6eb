// Included by combiner.cpp in namespace avx2, under `#pragma GCC target("avx2")`: GCC vectorises the loop of
// combiner_loops.h over bfloat16 to less than half of this speed. The bits are those of that loop, NaN included.

constexpr size_t kRegister = 16; // bfloat16 numbers, as two registers of eight floats
constexpr int kOddHalves = 0b10101010; // of 16 bits each

inline __m256 widen_even(__m256i values) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(values, 16));
}

inline __m256 widen_odd(__m256i values) {
  return _mm256_castsi256_ps(_mm256_and_si256(values, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// To the nearest, ties to even, in the upper half of each lane.
inline __m256i rounded(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

inline __m256i with_nan(__m256i sums, __m256 values) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  return _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(sums), nan, _mm256_cmp_ps(values, values, _CMP_UNORD_Q)));
}

inline __m256i narrow(__m256 even, __m256 odd) {
  __m256i low = rounded(even), high = rounded(odd);
  if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(even, odd, _CMP_UNORD_Q)) != 0, false)) {
    low = with_nan(low, even);
    high = with_nan(high, odd);
  }
  return _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, kOddHalves);
}

// As combined() in combiner_loops.h, also where a number is NaN or two are zeros of different signs.
template <Combine by>
inline __m256 combined_lanes(__m256 a, __m256 b) {
  switch (by) {
    case Combine::sum: return _mm256_add_ps(a, b);
    case Combine::product: return _mm256_mul_ps(a, b);
    case Combine::minimum: return _mm256_min_ps(b, a);
    case Combine::maximum: return _mm256_max_ps(b, a);
  }
}

template <Combine by>
void combine_bfloat16(const void* const* sources, int count, void* out, size_t numbers) {
  const auto* const* from = reinterpret_cast<const BFloat16* const*>(sources);
  auto* to = static_cast<BFloat16*>(out);
  const auto load = [&](int source, size_t at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from[source] + at));
  };
  size_t at = 0;
  for (; at + kRegister <= numbers; at += kRegister) {
    const __m256i first = load(0, at);
    __m256 even = widen_even(first), odd = widen_odd(first);
    for (int source = 1; source < count; ++source) {
      const __m256i values = load(source, at);
      even = combined_lanes<by>(even, widen_even(values));
      odd = combined_lanes<by>(odd, widen_odd(values));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at), narrow(even, odd));
  }
  if (at < numbers)
    combine_many<by, BFloat16>(from, count, at, to + at, numbers - at);
}

inline Combiner find_bfloat16(Combine by) {
  switch (by) {
    case Combine::sum: return combine_bfloat16<Combine::sum>;
    case Combine::product: return combine_bfloat16<Combine::product>;
    case Combine::minimum: return combine_bfloat16<Combine::minimum>;
    case Combine::maximum: return combine_bfloat16<Combine::maximum>;
  }
  return nullptr;
}
