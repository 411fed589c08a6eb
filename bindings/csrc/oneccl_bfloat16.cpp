// Replaces oneCCL's own reduction of bfloat16, for which its library has AVX-512 and a scalar loop only. The linker
// sends all of oneCCL's calls here (--wrap in setup.py): those of its rings and trees, and of the operation that it
// registers with MPI. Called by the thread that drives the operation, without locks.

#include <oneapi/ccl.hpp>

#include <xmmintrin.h>

#include "combiner.h"

namespace orch_ccl {
namespace {

Combine combination_of(ccl::reduction reduction) {
  switch (reduction) {
    case ccl::reduction::prod: return Combine::product;
    case ccl::reduction::min: return Combine::minimum;
    case ccl::reduction::max: return Combine::maximum;
    default: return Combine::sum; // the only other one that oneCCL has for bfloat16
  }
}

// libmpi calls its operations with denormal numbers taken for zeros.
class KeepDenormals {
 public:
  KeepDenormals() { _mm_setcsr(before_ & ~kFlags); }
  ~KeepDenormals() { _mm_setcsr(before_); }
  KeepDenormals(const KeepDenormals&) = delete;

 private:
  static constexpr unsigned kFlags = 0x8040; // flush to zero, denormals are zeros
  const unsigned before_ = _mm_getcsr();
};

} // namespace
} // namespace orch_ccl

// void ccl_bf16_reduce(const void* in, size_t count, void* inout, size_t* out_count, ccl::reduction)
extern "C" void __wrap__Z15ccl_bf16_reducePKvmPvPmN3ccl2v19reductionE(
    const void* in, size_t count, void* inout, size_t* out_count, ccl::reduction reduction) {
  using namespace orch_ccl;
  if (out_count)
    *out_count = count;
  const KeepDenormals keep;
  const void* const sources[] = {inout, in};
  combiner_for(Number::bfloat16, combination_of(reduction))(sources, 2, inout, count);
}
