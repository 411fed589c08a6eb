#pragma once

// What this extension was built with; setup.py passes both as compiler definitions.
#ifndef ORCH_CCL_VERSION
#error "build through setup.py"
#endif

namespace orch_ccl {
constexpr const char* BUILT_VERSION = ORCH_CCL_VERSION; // of oneccl_bind_pt, which begins with torch's
} // namespace orch_ccl
