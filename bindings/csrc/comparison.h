#pragma once

#include "work.h"

namespace orch_ccl {

// True if ORCH_CCL_CHECK is 1 in this process.
bool comparing();

// The same operation after all ranks have told each other which one it is: if one of them calls another,
// or the same with other sizes, it raises Disagreement instead of communicating.
Operation compared(Operation operation);

} // namespace orch_ccl
