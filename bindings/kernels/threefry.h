#pragma once

#include <cstdint>

// Threefry4x32-13 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). Its random words depend only on
// a key and a counter, so they can be computed in any order, by any number of threads, and repeatedly. It uses
// additions, rotations and xors, which all vector units support; the wide products of Philox cost four times as much
// with AVX2. 12 rounds pass the BigCrush test; for 13 the authors publish known answers.
namespace orch_dropout {

#define ORCH_INLINE inline __attribute__((always_inline))

constexpr int kRounds = 13;
constexpr int kWords = 4; // per counter
constexpr int kLanes = 16; // counters per step: one vector register of AVX-512, two of AVX2
constexpr int kBlock = kWords * kLanes;
constexpr int kRotations[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5}, {6, 20}, {17, 11}, {25, 10}, {18, 20}};

using Block = uint32_t[kWords][kLanes];
using Key = uint32_t[kWords + 1];

struct Words {
  uint32_t a, b, c, d;
};

ORCH_INLINE void mix(uint32_t& sum, uint32_t& word, int bits) {
  sum += word;
  word = ((word << bits) | (word >> (32 - bits))) ^ sum;
}

// Computes the rounds from `round`. Recursive templates unroll them, so that the loop over the lanes has no branches
// and can be vectorised.
template <int round>
ORCH_INLINE Words mix_rounds(Words x, const Key& key) {
  if constexpr (round == kRounds) {
    return x;
  } else {
    constexpr bool straight = round % 2 == 0;
    mix(x.a, straight ? x.b : x.d, kRotations[round % 8][0]);
    mix(x.c, straight ? x.d : x.b, kRotations[round % 8][1]);
    if constexpr (round % 4 == 3) {
      constexpr uint32_t n = round / 4 + 1;
      x = {x.a + key[n % 5], x.b + key[(n + 1) % 5], x.c + key[(n + 2) % 5], x.d + key[(n + 3) % 5] + n};
    }
    return mix_rounds<round + 1>(x, key);
  }
}

// Fills lane l with the words for counter `first + l`; `first` is a multiple of kLanes.
ORCH_INLINE void threefry(uint64_t seed, uint64_t first, Block& out) {
  const auto low = static_cast<uint32_t>(first), high = static_cast<uint32_t>(first >> 32);
  const auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  const Key key = {key0, key1, 0, 0, 0x1BD11BDA ^ key0 ^ key1};
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const Words words = mix_rounds<0>({low + lane + key[0], high + key[1], key[2], key[3]}, key);
    out[0][lane] = words.a;
    out[1][lane] = words.b;
    out[2][lane] = words.c;
    out[3][lane] = words.d;
  }
}

} // namespace orch_dropout
