#pragma once

// Functions of single numbers, which compilers vectorise in loops.

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <ATen/ATen.h>

#include "threefry.h"

namespace orch_elementwise {

using at::BFloat16;

// What a number is in memory. Compilers vectorise loops over it, but not over BFloat16, which is a class.
template <typename T>
using Stored = std::conditional_t<std::is_same_v<T, BFloat16>, uint16_t, T>;

// The BF16 number nearest to FP32 numbers, or to even, from their bits, in a word or a vector of words.
template <typename Words>
ORCH_INLINE void round_to_bfloat16(Words& bits) {
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, nan = Words() + 0x7fc0;
  bits = (bits & 0x7fffffff) > 0x7f800000 ? nan : rounded; // no branch, so that compilers vectorise loops
}

// The number in another type.
template <typename To, typename From>
ORCH_INLINE Stored<To> convert(Stored<From> x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (std::is_same_v<From, BFloat16>)
    return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
  else if constexpr (std::is_same_v<To, BFloat16>) {
    auto bits = std::bit_cast<uint32_t>(x);
    round_to_bfloat16(bits);
    return static_cast<uint16_t>(bits);
  } else
    return static_cast<To>(x);
}

// exp(x) for x <= 0, and 0 where the result is subnormal. The polynomial has the smallest relative error of its degree
// from -log(2) / 2 to log(2) / 2, 9e-8. With fused multiplications and additions, the result is wrong by at most two
// units in the last place down to 1e-13, and by four below.
ORCH_INLINE float exponential(float x) {
  constexpr float kRounding = 12582912 + 127; // adding 1.5 * 2**23 rounds to an integer; 127 is the bias of exponents
  const float shifted = x * 1.44269504f + kRounding, n = shifted - kRounding;
  const float r = x - n * 0.693147182f;
  float y = 8.290288039e-3f;
  y = y * r + 4.189807177e-2f;
  y = y * r + 1.666763723e-1f;
  y = y * r + 4.999914765e-1f;
  y = y * r + 9.999997020e-1f;
  y = y * r + 1;
  const float power = std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
  return x < -87.0f ? 0.0f : y * power;
}

ORCH_INLINE double exponential(double x) {
  return std::exp(x);
}

} // namespace orch_elementwise
