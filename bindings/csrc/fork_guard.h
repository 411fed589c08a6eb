#pragma once

namespace orch_ccl {

// MPI and its connections belong to the process that initialised them. A forked child (a DataLoader
// worker) may carry the objects around and drop them, but must never reach the network with them.
void install_fork_guard();
bool in_forked_child();
void require_parent_process();

} // namespace orch_ccl
