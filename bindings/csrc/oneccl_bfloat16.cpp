// Replaces oneCCL's bfloat16 reduction, of which the library has only an AVX-512 version and a scalar loop. The linker
// redirects all of oneCCL's calls here (--wrap in setup.py): those of its rings and trees, and those of the operation
// that it registers with MPI. Called by the thread that drives the operation, under the engine's lock, or by a worker
// of oneCCL.

#include <oneapi/ccl.hpp>

#include <xmmintrin.h>

#include "combiner.h"

namespace orch_ccl {
namespace {

// libmpi calls operations in a mode that treats denormal numbers as zeros. Switches the mode off until the end of the
// block.
class EnableDenormals {
 public:
  EnableDenormals() { _mm_setcsr(previous_mode_ & ~kFlushDenormals); }
  ~EnableDenormals() { _mm_setcsr(previous_mode_); }
  EnableDenormals(const EnableDenormals&) = delete;

 private:
  static constexpr unsigned kFlushDenormals = 0x8040; // flush to zero, denormals are zeros
  const unsigned previous_mode_ = _mm_getcsr();
};

} // namespace
} // namespace orch_ccl

// void ccl_bf16_reduce(const void* in, size_t count, void* inout, size_t* out_count, ccl::reduction)
extern "C" void __wrap__Z15ccl_bf16_reducePKvmPvPmN3ccl2v19reductionE(
    const void* in, size_t count, void* inout, size_t* out_count, ccl::reduction reduction) {
  using namespace orch_ccl;
  if (out_count)
    *out_count = count;
  const EnableDenormals enable_denormals;
  const void* const sources[] = {inout, in};
  const auto op = reduction == ccl::reduction::prod ? CombineOp::product : CombineOp::sum; // see Reduction::by_order
  combiner_for(NumberType::bfloat16, op)(sources, 2, inout, count);
}
