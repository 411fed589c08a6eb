#pragma once

#include <functional>

namespace orch_ccl {

constexpr const char* kCallbackThreads = "ccl-callback"; // their name

// Runs `call`, which may wait for another operation, on a thread that drives no operations: so those
// go on beneath it. Calls do not wait for each other: where all such threads are busy, one more is started.
void call_elsewhere(std::function<void()> call);

} // namespace orch_ccl
