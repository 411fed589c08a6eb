#pragma once

namespace orch_ccl {

// Watches operations that take long: tells the other ranks through the store that this one is waiting,
// looks for members that are gone, and ends what is past its timeout with a message that names them.
void start_monitor();

// Tells the members of all living groups that this process ends, and how.
void announce_exit(int status);

} // namespace orch_ccl
