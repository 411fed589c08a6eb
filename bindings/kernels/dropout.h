#pragma once

// The mask of dropout: a function of a seed and each element's position in the order of indices.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "threefry.h"

namespace orch_dropout {

// The seed comes from torch's default generator, so torch.manual_seed and saved random states determine it.
inline int64_t next_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  return static_cast<int64_t>(at::check_generator<at::CPUGeneratorImpl>(generator)->random64());
}

// Elements whose random word is smaller are dropped.
inline uint32_t word_threshold(double p) {
  return static_cast<uint32_t>(std::min(std::nearbyint(std::ldexp(p, 32)), 4294967295.0));
}

inline at::Tensor call_by_seed(const at::Tensor& input, double p, int64_t seed) {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("orch::dropout_by_seed", "")
                                 .typed<at::Tensor(const at::Tensor&, double, int64_t)>();
  return handle.call(input, p, seed);
}

} // namespace orch_dropout
