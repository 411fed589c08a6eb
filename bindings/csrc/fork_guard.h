#pragma once

namespace orch_ccl {

// MPI and its connections belong to the process that initialised them. A forked child (a DataLoader worker) may hold
// and drop our objects, but must never use the network through them.

// Called before the first group is created. Any thread may call these functions.
void install_fork_guard();
bool in_forked_child();
// Throws in a forked child.
void require_parent_process();

} // namespace orch_ccl
