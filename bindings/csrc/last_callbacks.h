#pragma once

namespace orch_ccl {

// Waits, without the interpreter's lock, until the threads of gloo, and ours that run callbacks, have let go of the
// operations that are over.
void wait_for_last_callbacks();

} // namespace orch_ccl
