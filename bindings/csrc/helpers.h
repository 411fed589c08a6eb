#pragma once

#include <memory>

#include "striped_transfer.h"

namespace orch_ccl {

// Lets the helper threads advance a transfer until nothing moves. Called by the thread that drives operations, while
// data moves. The threads start with the first call and live as long as the process; the transfer decides their number.
void wake_helpers(const std::shared_ptr<StripedTransfer>& transfer);

} // namespace orch_ccl
