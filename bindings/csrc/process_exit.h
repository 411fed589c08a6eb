#pragma once

namespace orch_ccl {

// What happens when this process ends, with or without destroy_process_group. See process_exit.cpp.
void install_exit_handler();

} // namespace orch_ccl
