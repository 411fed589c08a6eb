#pragma once

namespace orch_ccl {

// Waits until the threads of gloo and our callback threads have released the operations that have completed. Called by
// the main thread before the interpreter exits, without the GIL. See last_callbacks.cpp.
void wait_for_last_callbacks();

} // namespace orch_ccl
