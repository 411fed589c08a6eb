#pragma once

namespace orch_ccl {

// Called by each of our threads when it starts.
void become_background_thread(const char* name);
// Lowers the priority of the calling thread below that of the computation. Permanent, because only root could raise it.
void lower_priority();

} // namespace orch_ccl
