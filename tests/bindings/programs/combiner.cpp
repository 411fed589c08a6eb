// Compares the results of all vector instructions of this processor with those of scalar arithmetic, bit by bit.
#include "combiner.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

using namespace orch_ccl;

namespace {

constexpr CombineOp kOperations[] = {CombineOp::sum, CombineOp::product, CombineOp::minimum, CombineOp::maximum};
// Zeros, the smallest and largest numbers of each kind, infinities, quiet and signalling NaNs, and ties.
constexpr uint16_t kSpecial[] = {
    0x0000, 0x0001, 0x007f, 0x0080, 0x3f80, 0x3f81, 0x3c00, 0x3b80, 0x7f7f, 0x7f80, 0x7f81, 0x7fc0, 0x7fff};
constexpr size_t kMaxNumbers = 5000; // numbers: several blocks of the loops

// round to nearest even, as torch does it, one number at a time
uint16_t expected(CombineOp op, const std::vector<const uint16_t*>& sources, size_t i) {
  const auto widen = [&](const uint16_t* source) {
    const uint32_t bits = uint32_t{source[i]} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  };
  float result = widen(sources[0]);
  for (size_t source = 1; source < sources.size(); ++source) {
    const float value = widen(sources[source]);
    result = op == CombineOp::sum ? result + value
        : op == CombineOp::product ? result * value
        : op == CombineOp::minimum ? (value < result ? value : result)
                                 : (result < value ? value : result);
  }
  uint32_t bits;
  std::memcpy(&bits, &result, sizeof bits);
  return result != result ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void compare(SimdLevel simd_level, const std::vector<const uint16_t*>& sources, size_t numbers, size_t shift, bool in_place) {
  for (const auto op : kOperations) {
    std::vector<uint16_t> result(numbers + shift + 1, 0x1234);
    std::vector<const void*> inputs(sources.begin(), sources.end());
    if (in_place) {
      std::memcpy(result.data() + shift, sources[0], numbers * sizeof(uint16_t));
      inputs[0] = result.data() + shift;
    }
    combiner_for(NumberType::bfloat16, op, simd_level)(inputs.data(), static_cast<int>(inputs.size()), result.data() + shift, numbers);
    for (size_t i = 0; i < numbers; ++i)
      if (result[shift + i] != expected(op, sources, i)) {
        std::printf(
            "vectors %d, combine %d, %zu sources, number %zu of %zu, shift %zu: %04x and %04x give %04x, not %04x\n",
            static_cast<int>(simd_level), static_cast<int>(op), sources.size(), i, numbers, shift, sources[0][i],
            sources[1][i], result[shift + i], expected(op, sources, i));
        std::exit(1);
      }
    if (result[shift + numbers] != 0x1234) {
      std::printf("vectors %d, %zu numbers: wrote past the end\n", static_cast<int>(simd_level), numbers);
      std::exit(1);
    }
  }
}

void compare_all(SimdLevel simd_level) {
  std::vector<uint16_t> a, b;
  for (const auto first : kSpecial) // all pairs, in both signs
    for (const auto second : kSpecial)
      for (const uint16_t signs : {0, 1, 2, 3}) {
        a.push_back(first | (signs & 1) << 15);
        b.push_back(second | (signs & 2) << 14);
      }
  compare(simd_level, {a.data(), b.data()}, a.size(), 0, false);
  std::mt19937 random(1);
  std::vector<std::vector<uint16_t>> data(4, std::vector<uint16_t>(kMaxNumbers + 16));
  for (auto& values : data)
    for (auto& value : values)
      value = static_cast<uint16_t>(random());
  for (size_t shift = 0; shift < 16; ++shift)
    for (const size_t numbers : {size_t{1}, size_t{7}, size_t{15}, size_t{16}, size_t{17}, size_t{33}, size_t{1025}, kMaxNumbers - 1}) {
      std::vector<const uint16_t*> sources;
      for (const auto& values : data) {
        sources.push_back(values.data() + shift);
        if (sources.size() > 1)
          for (const bool in_place : {false, true})
            compare(simd_level, sources, numbers, (shift * 3) % 16, in_place);
      }
    }
}

} // namespace

// Compares all vector instructions of this processor, then prints those that a combiner uses by default.
int main() {
  const SimdLevel usable = usable_simd_level();
  for (int simd_level = 0; simd_level <= static_cast<int>(usable); ++simd_level)
    compare_all(static_cast<SimdLevel>(simd_level));
  std::puts(usable == SimdLevel::avx512 ? "avx512" : usable == SimdLevel::avx2 ? "avx2" : "none");
  return 0;
}
