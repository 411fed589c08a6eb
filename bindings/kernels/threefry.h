#pragma once

#include <cstdint>

// Threefry4x32-13 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): random words that are a
// function of a key and a counter alone, so that they can be made in any order, by any number of threads, and again.
// It adds, turns and xors, which vector units of every width do; Philox' wide products cost AVX2 four times as much.
// 12 rounds pass the BigCrush test; for 13 the authors publish known answers.
namespace orch_dropout {

#define ORCH_INLINE inline __attribute__((always_inline))

constexpr int kRounds = 13;
constexpr int kWords = 4; // of one counter
constexpr int kLanes = 16; // counters that are computed at once: a vector register of AVX-512, two of AVX2
constexpr int kBlock = kWords * kLanes;
constexpr int kTurns[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5}, {6, 20}, {17, 11}, {25, 10}, {18, 20}};

using Block = uint32_t[kWords][kLanes];
using Key = uint32_t[kWords + 1];

struct Words {
  uint32_t a, b, c, d;
};

ORCH_INLINE void mix(uint32_t& sum, uint32_t& word, int bits) {
  sum += word;
  word = ((word << bits) | (word >> (32 - bits))) ^ sum;
}

// Rounds from `round` on. Written out, so that a loop over the lanes has no branches and becomes vectors.
template <int round>
ORCH_INLINE Words mixed(Words x, const Key& key) {
  if constexpr (round == kRounds) {
    return x;
  } else {
    constexpr bool straight = round % 2 == 0;
    mix(x.a, straight ? x.b : x.d, kTurns[round % 8][0]);
    mix(x.c, straight ? x.d : x.b, kTurns[round % 8][1]);
    if constexpr (round % 4 == 3) {
      constexpr uint32_t n = round / 4 + 1;
      x = {x.a + key[n % 5], x.b + key[(n + 1) % 5], x.c + key[(n + 2) % 5], x.d + key[(n + 3) % 5] + n};
    }
    return mixed<round + 1>(x, key);
  }
}

// Lane l has the words of the counter `first + l`; `first` is a multiple of kLanes.
ORCH_INLINE void threefry(uint64_t seed, uint64_t first, Block& out) {
  const auto low = static_cast<uint32_t>(first), high = static_cast<uint32_t>(first >> 32);
  const auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  const Key key = {key0, key1, 0, 0, 0x1BD11BDA ^ key0 ^ key1};
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const Words found = mixed<0>({low + lane + key[0], high + key[1], key[2], key[3]}, key);
    out[0][lane] = found.a;
    out[1][lane] = found.b;
    out[2][lane] = found.c;
    out[3][lane] = found.d;
  }
}

} // namespace orch_dropout
