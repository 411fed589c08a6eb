#pragma once

#include "work.h"

namespace orch_ccl {

// Returns whether ORCH_CCL_CHECK is 1, which must be the same on all ranks.
bool call_checks_enabled();

// Returns the operation with a check before it: all ranks first exchange descriptions of their calls. If a rank calls
// another collective, or the same one with other sizes, the operation throws CollectiveMismatch or SizeMismatch instead
// of communicating.
Operation with_call_check(Operation operation);

} // namespace orch_ccl
