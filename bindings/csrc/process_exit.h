#pragma once

namespace orch_ccl {

// Installs the handler that ends this process, with or without destroy_process_group; see process_exit.cpp. Called when
// the first communicator has been created.
void install_exit_handler();

// Registers the handler again, so that it runs before those that were registered meanwhile: gloo's may abort. Called
// before the interpreter exits.
void run_exit_handler_first();

} // namespace orch_ccl
