#pragma once

// The version that setup.py passes as a compiler definition.
#ifndef ORCH_CCL_VERSION
#error "build through setup.py"
#endif

namespace orch_ccl {
constexpr const char* BUILT_VERSION = ORCH_CCL_VERSION; // of oneccl_bind_pt: the version of torch, then "+orch.N"
} // namespace orch_ccl
