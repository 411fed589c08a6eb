#pragma once

namespace orch_ccl {

// To be called by a thread of ours as it begins.
void become_background_thread(const char* name);
// For good: only root could take it back. The computation has the core first.
void give_way();

} // namespace orch_ccl
