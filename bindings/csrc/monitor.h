#pragma once

#include <string>

#include "work.h"

namespace orch_ccl {

// Starts the thread that monitors pending operations: it tells the other ranks through the store what this one waits
// for, detects members that have died, and fails operations that exceed their timeout, with a message that names the
// missing ranks. Called once, by the engine.
void start_monitor();

// Returns why this operation can never complete, or "". It queries the store: call it without the engine's lock.
std::string find_failure(const WorkPtr& work);

// Publishes this process's exit status to the members of all its groups. Called by the exit handler.
void announce_exit(int status);

} // namespace orch_ccl
