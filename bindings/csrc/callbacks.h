#pragma once

#include <functional>

namespace orch_ccl {

constexpr const char* kCallbackThreadName = "ccl-callback"; // as `ps -L` shows them

// Runs a callback on a thread that drives no operations, because the callback may wait for another operation. Callbacks
// do not wait for each other: if all callback threads are busy, another one is started. Called by the engine without
// its lock.
void run_on_callback_thread(std::function<void()> callback);

} // namespace orch_ccl
