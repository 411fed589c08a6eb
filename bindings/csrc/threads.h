#pragma once

namespace orch_ccl {

// To be called by a thread of ours as it begins.
void become_background_thread(const char* name);

} // namespace orch_ccl
