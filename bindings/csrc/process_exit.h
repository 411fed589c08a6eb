#pragma once

namespace orch_ccl {

// What happens when this process ends, with or without destroy_process_group. See process_exit.cpp.
void install_exit_handler();

// The same once more, ahead of what was registered since: gloo, used beside ccl, may abort there.
void leave_before_others();

} // namespace orch_ccl
