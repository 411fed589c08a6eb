#pragma once

namespace orch_ccl {

// Waits, without the interpreter's lock, until gloo's threads have let go of the operations that are over.
void wait_for_gloos_threads();

} // namespace orch_ccl
