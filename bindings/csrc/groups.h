#pragma once

#include <memory>
#include <vector>

#include "group.h"

namespace orch_ccl {

// The groups of this process that have not been destroyed. Any thread may call these functions.
void register_group(const std::shared_ptr<Group>& group);
std::vector<std::shared_ptr<Group>> living_groups();

} // namespace orch_ccl
